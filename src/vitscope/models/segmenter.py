"""`segmenter`: any ViT with a grid as encoder, and a decoder of Segmenter (Strudel et al. 2021, arXiv 2105.05633).

The encoder's patches, behind its final norm and without class and register tokens, go into the decoder; its classes of
patches are resized to the picture. Parameters are `encoder.*` under timm's names and `decoder.*` under the published.
"""

from __future__ import annotations

import inspect
import math
from functools import cache
from typing import Any, Literal, get_args

import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.architectures.families import check_model, family_of, final_norms
from vitscope.architectures.layout import derive_layout, input_size
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError, suggest
from vitscope.models.creation import build, check_options, sketch
from vitscope.models.naming import register_model
from vitscope.models.segmentation_decoders import LinearDecoder, MaskDecoder
from vitscope.models.windows import check_windows, pad_to, slide, window_starts

Decoder = Literal["linear", "mask"]
Size = int | tuple[int, int] | list[int]


class Segmenter(nn.Module):
    """Pictures (B, C, H, W) -> logits (B, K, H, W). The decoder decides which of the two subclasses it is."""

    def __init__(self, encoder: Any, decoder: nn.Module, num_classes: int, backbone: str) -> None:
        super().__init__()
        self.encoder, self.decoder = encoder, decoder
        self.num_classes, self.backbone = num_classes, backbone
        self.patch = derive_layout(encoder).patch
        self.any_size = bool(getattr(encoder, "dynamic_img_size", False))
        self.window: tuple[int, int] | None = None  # None: each picture as a whole
        self.stride: tuple[int, int] | None = None
        self.windows_at_a_time = 8

    def forward(self, images: Tensor) -> Tensor:
        """In training each picture as a whole; else through windows, where there are any."""
        if self.window is None or self.training:
            return self.whole(images)
        return slide(self.whole, images, self.window, self.stride or self.window, self.windows_at_a_time)

    def whole(self, images: Tensor) -> Tensor:
        """Without windows: padded to whole patches at the right and the bottom, and cut back."""
        height, width = images.shape[-2:]
        rows, columns = (-(-side // patch) for side, patch in zip((height, width), self.patch))
        images = pad_to(images, rows * self.patch[0], columns * self.patch[1])
        self._check_size(*images.shape[-2:])
        logits = self.decoder(self.patches(images)).transpose(1, 2).unflatten(2, (rows, columns))  # (B, K, rows, cols)
        logits = F.interpolate(logits, images.shape[-2:], mode="bilinear", align_corners=False)
        return logits[..., :height, :width]

    def patches(self, images: Tensor) -> Tensor:
        """(B, C, H, W) -> what the decoder takes, (B, T, C)"""
        x = self.encoder.forward_features(images)[:, self.encoder.num_prefix_tokens :]
        for norm in final_norms(self.encoder)[1:]:  # of models that pool first and normalise then
            x = norm(x)
        return x

    def looks(self, images: Tensor) -> int:
        """How many windows there are of each picture."""
        if self.window is None or self.training:
            return 1
        sides = zip(images.shape[-2:], self.window, self.stride or self.window)
        return math.prod(len(window_starts(*side)) for side in sides)

    def _check_size(self, height: int, width: int) -> None:
        own = input_size(self.encoder)[1:]
        if not self.any_size and (height, width) != own:
            raise DataError(
                f"{self.backbone} is tied to pictures of {own[0]}x{own[1]}, and this one has {height}x{width} (in "
                f"whole patches): build it with image_size=({height}, {width}), or look through windows of its size."
            )

    def no_weight_decay(self) -> set[str]:
        """What timm's optimisers let alone."""
        spared: set[str] = getattr(self.encoder, "no_weight_decay", set)()
        return {f"encoder.{name}" for name in spared} | {"decoder.cls_emb"}


class LinearSegmenter(Segmenter):
    """With the linear decoder: each patch has a way to classes of its own."""


class MaskSegmenter(Segmenter):
    """With the mask decoder: all patches of a picture are decided together."""


@register_model("segmenter")
def segmenter(
    *,
    num_classes: int = 150,
    backbone: str = "vit_tiny_patch16_224",  # of timm, or `small`
    decoder: Decoder = "mask",
    image_size: Size | None = None,  # of its positions; other sizes get interpolated ones. None: the backbone's own
    decoder_depth: int = 2,  # blocks of the mask decoder, as published; and so the next three
    decoder_width: int | None = None,  # None: the encoder's
    decoder_heads: int | None = None,  # None: one per 64 channels
    decoder_dropout: float = 0.1,
    norm_eps: float | None = None,  # of the encoder's norms; None: the backbone's own (timm: 1e-6; published: 1e-5)
    window: Size | None = None,  # pictures are looked at through windows of this size; None: as a whole
    stride: Size | None = None,  # from window to window; None: the window's size
    windows_at_a_time: int = 8,  # of one or several pictures, in one forward pass
    **options: Any,  # of the backbone, e.g. patch_size, embed_dim, depth, num_heads, drop_path_rate
) -> Segmenter:
    """Published: 150 classes, windows of 512 every 512 pixels."""
    if decoder not in get_args(Decoder):
        known = get_args(Decoder)
        raise VitscopeError(
            f"There is no decoder {decoder!r}.{suggest(str(decoder), known)} Known: {', '.join(known)}."
        )
    if num_classes < 1:
        raise VitscopeError(f"num_classes={num_classes}: a segmenter tells at least one class.")
    encoder = build_encoder(backbone, image_size, options)
    if norm_eps is not None:
        for part in encoder.modules():
            if isinstance(part, nn.LayerNorm):
                part.eps = norm_eps
    width = derive_layout(encoder).width
    if decoder == "linear":
        module: Segmenter = LinearSegmenter(encoder, LinearDecoder(width, num_classes), num_classes, backbone)
    else:
        inner = decoder_width or width
        heads = decoder_heads or max(1, inner // 64)
        mask = MaskDecoder(width, num_classes, inner, decoder_depth, heads, decoder_dropout)
        module = MaskSegmenter(encoder, mask, num_classes, backbone)
    if window is not None:
        module.window, module.stride = pair(window), pair(window if stride is None else stride)
        check_windows(module.window, module.stride)
    elif stride is not None:
        raise VitscopeError(f"stride={stride} is that of windows: give window=, too.")
    module.windows_at_a_time = max(1, windows_at_a_time)
    configuration: Any = {
        **dict(encoder.pretrained_cfg or {}),
        "architecture": "segmenter",
        "input_size": input_size(encoder),
        "num_classes": num_classes,
        "crop_pct": 1.0,
        "classifier": "decoder",
    }
    module.pretrained_cfg = module.default_cfg = configuration
    return module


def build_encoder(backbone: str, image_size: Size | None, options: dict[str, Any]) -> Any:
    """The backbone without a head, for pictures of any size where it can be."""
    channels, resizes = _checked(backbone)
    settings = {"num_classes": 0, **({} if image_size is None else {"img_size": image_size})}
    if channels != 3:
        settings["in_chans"] = 3
    if resizes:
        settings["dynamic_img_size"] = True
    if options.get("patch_drop_rate"):
        raise VitscopeError("patch_drop_rate leaves patches out, and a segmenter answers for all of them.")
    options = {**settings, **options}
    check_options(backbone, options)
    encoder: Any = build(backbone, options)
    if getattr(encoder, "attn_pool", None) is not None:
        encoder.attn_pool = None  # what pooled the tokens for its head
    return encoder


@cache
def _checked(backbone: str) -> tuple[int, bool]:
    """(channels, can it interpolate its positions?) of a model that can be an encoder."""
    from vitscope.models.open import check_name

    check_name(backbone)
    plain = sketch(backbone)
    check_grid(plain, backbone)
    builders: list[Any] = [vars(cls).get("__init__") for cls in type(plain).__mro__[:-1]]
    resizes = any(b and "dynamic_img_size" in inspect.signature(b).parameters for b in builders)
    return input_size(plain)[0], resizes


def check_grid(module: nn.Module, backbone: str) -> None:
    """Raise UnsupportedModelError, with the reason, where a model cannot be an encoder."""
    check_model(module)
    if family_of(module).text or derive_layout(module).sequence:
        raise UnsupportedModelError(
            f"{backbone} cannot be the backbone of a segmenter: its tokens are a sequence, not a grid of patches."
        )
    if family_of(module).trunk:
        raise UnsupportedModelError(f"{backbone} cannot be the backbone of a segmenter: it is a segmenter already.")


def pair(size: Size) -> tuple[int, int]:
    """(height, width) of a size that is one number, or two."""
    sides = (size, size) if isinstance(size, int) else tuple(size)
    if len(sides) != 2 or not all(isinstance(side, int) and side > 0 for side in sides):
        raise VitscopeError(f"{size!r} is no size of a picture: expected one whole number, or height and width.")
    return sides[0], sides[1]
