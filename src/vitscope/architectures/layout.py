"""The token layout of a ViT: derived from the built model, never asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from vitscope.architectures.families import block_row, family_of, trunk_of
from vitscope.errors import UnsupportedModelError


class Items(Protocol):
    """What a layout asks of a batch."""

    valid: Tensor | None  # (B, N) bool

    def __len__(self) -> int: ...
    def parts(self, grid: tuple[int, int]) -> dict[str, Tensor]: ...  # by masks: (B, T) bool


@dataclass(frozen=True)
class Layout:
    """Order of the tokens: class token, distillation token, registers, then image tokens row by row.

    A sequence has one row, and its tokens lie one apart: `Layout.of_sequence`.
    """

    class_tokens: int  # 0, 1, or 2 (class and distillation)
    register_tokens: int
    grid: tuple[int, int]  # image tokens: rows, columns
    patch: tuple[int, int]  # pixels of the input behind one image token: height, width
    blocks: int
    heads: int
    head_dim: int
    width: int  # of the residual stream
    sequence: bool = False  # not a picture: there are no masks, maps or patches
    scales: tuple[float, ...] = ()  # per block: what q k^T is multiplied with; empty: 1 / sqrt(head_dim) everywhere

    @classmethod
    def of_sequence(
        cls, length: int, *, blocks: int, heads: int, head_dim: int, width: int, prefix: int = 0, **more: Any
    ) -> Self:
        """`prefix` class tokens, then `length` tokens."""
        return cls(prefix, 0, (1, length), (1, 1), blocks, heads, head_dim, width, sequence=True, **more)

    def scale(self, block: int) -> float:
        """What the scores q k^T of a block are multiplied with, in its call of attention."""
        return self.scales[block] if self.scales else self.head_dim**-0.5

    @property
    def distillation(self) -> bool:
        return self.class_tokens == 2

    @property
    def prefix_tokens(self) -> int:
        return self.class_tokens + self.register_tokens

    @property
    def image_tokens(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def tokens(self) -> int:
        return self.prefix_tokens + self.image_tokens

    @property
    def image(self) -> slice:
        """Where the image tokens are, or the items of a sequence."""
        return slice(self.prefix_tokens, self.tokens)

    @property
    def spans(self) -> dict[str, slice]:
        """The kinds of tokens that there are, each a stretch: class, distillation, register, image."""
        c, p = self.class_tokens, self.prefix_tokens
        spans = {"class": slice(0, min(c, 1)), "distillation": slice(1, c), "register": slice(c, p)}
        spans["image"] = self.image
        return {kind: span for kind, span in spans.items() if span.start < span.stop}

    def groups(self, batch: Items) -> dict[str, Tensor]:
        """Which tokens of a batch are counted together: (B, N) bool by name. Padding is in none.

        The kinds of tokens and, where the batch has masks, the parts of image: object and context.
        """
        found = {}
        for kind, span in self.spans.items():
            found[kind] = torch.zeros(len(batch), self.tokens, dtype=torch.bool)
            found[kind][:, span] = True
        for part, inside in batch.parts(self.grid).items():
            found[part] = torch.zeros(len(batch), self.tokens, dtype=torch.bool)
            found[part][:, self.image] = inside
        if batch.valid is not None:
            found = {name: inside & batch.valid for name, inside in found.items()}
        return found

    def __str__(self) -> str:
        return (
            f"{self.blocks} blocks x {self.heads} heads of {self.head_dim}, width {self.width}; "
            f"{self.class_tokens} class + {self.register_tokens} register + {self._content()} tokens"
        )

    def _content(self) -> str:
        return str(self.grid[1]) if self.sequence else f"{self.grid[0]}x{self.grid[1]} image"


def input_size(module: nn.Module) -> tuple[int, int, int]:
    """(channels, height, width) that the built model takes."""
    embed: Any = trunk_of(module).patch_embed
    height, width = embed.img_size
    convolution = next(m for m in embed.modules() if isinstance(m, nn.Conv2d))
    return convolution.in_channels, height, width


def derive_layout(module: Any) -> Layout:
    """Read the layout off a built timm model that `families.check_model` has accepted, or ask its family."""
    family = family_of(module)
    if family.layout is not None:
        return family.layout(module)
    trunk = trunk_of(module)
    block = trunk.blocks[0]
    attention = block.get_submodule(block_row(block).attn)
    class_tokens = sum(getattr(trunk, t, None) is not None for t in ("cls_token", "dist_token"))
    class_tokens = min(class_tokens, trunk.num_prefix_tokens)  # FAN's joins behind the blocks
    _, height, width = input_size(module)
    rows, columns = trunk.patch_embed.grid_size
    # BEiT's attention does not keep its head size, but every attention of timm keeps its scale = head_dim ** -0.5
    scale = getattr(attention, "scale", None)
    head_dim = getattr(attention, "head_dim", None) or (round(scale**-2) if isinstance(scale, float) else None)
    heads = getattr(attention, "num_heads", None)
    if heads is None or head_dim is None:
        raise UnsupportedModelError(
            f"{type(attention).__name__} does not say how many heads it has and how large they are: give it "
            "`num_heads` and `head_dim`."
        )
    return Layout(
        class_tokens=class_tokens,
        register_tokens=trunk.num_prefix_tokens - class_tokens,
        grid=(rows, columns),
        patch=(height // rows, width // columns),
        blocks=len(trunk.blocks),
        heads=heads,
        head_dim=head_dim,
        width=trunk.embed_dim,
    )
