"""Learnt lenses: heads that were trained to read a frozen model's blocks, beside the plain projection.

Two kinds, one head per block; the last block needs none, because the model itself reads it.

* `refined`: Naseer et al., "On Improving Adversarial Transferability of Vision Transformers" (ICLR 2022). With
  x = norm(block output), its class token c and its patches p as a picture (C, h, w),

      f = relu(bn(conv p));  f = relu(bn(conv f) + p);  logits = head(mean of f over the grid + token_fc(c))

  where the 3x3 convolution (no bias) and the batch norm are used twice. It reads a whole image, not a token. A model
  that pools its patches has no class token: its heads have no `token_fc`.
* `linear`: the tuned lens (Belrose et al. 2023), logits = head(norm(x + A x + b)), which starts as the plain
  projection and reads every token.

They are children of the model's module, under the published name `transformerheads.<block>` and under
`translators.<block>`: saved, moved and loaded with it. The model's own answer does not use them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.architectures.families import blocks_of, family_of, heads_of
from vitscope.architectures.layout import Layout, derive_layout
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.readout import readout_logits
from vitscope.models.vocabulary import before_head

if TYPE_CHECKING:
    from vitscope.models.model import Model

Kind = Literal["refined", "linear"]
PLACES: dict[Kind, str] = {"refined": "transformerheads", "linear": "translators"}
ABOUT: dict[Kind, str] = {
    "refined": "heads of refinement, which read a whole image",
    "linear": "affine maps (a tuned lens), which read every token",
}
_NAMES = re.compile(rf"({'|'.join(PLACES.values())})\.\d+\.")


class RefinedHead(nn.Module):
    """Patches (B, C, h, w) and class token (B, C), both behind the final norm -> what the model's head reads, (B, C).

    `token_fc` starts as the identity: at first the class token is read as it is.
    """

    def __init__(self, width: int, class_token: bool = True) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(width)
        self.token_fc = nn.Linear(width, width) if class_token else None
        if self.token_fc is not None:
            nn.init.eye_(self.token_fc.weight)
            nn.init.zeros_(self.token_fc.bias)

    def forward(self, patches: Tensor, token: Tensor | None = None) -> Tensor:
        f = F.relu(self.bn(self.conv(patches)))  # (B, C, h, w)
        f = F.relu(self.bn(self.conv(f)) + patches)
        pooled = f.mean((2, 3))  # (B, C)
        return pooled if self.token_fc is None else pooled + self.token_fc(token)


class Translator(nn.Linear):
    """x + A x + b for tokens (..., C), A and b zero at first."""

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


def why_no_lens(module: Any, kind: Kind) -> str | None:
    """Why a model cannot have such heads, or None if it can."""
    if family_of(module).text:
        return "it is a language model: learnt lenses are trained for pictures alone"
    layout = derive_layout(module)
    if layout.blocks < 2:
        return "it has one block, which the model itself reads"
    if kind == "refined" and layout.sequence:
        return "its tokens have no grid to convolve: take the linear lens"
    if kind == "refined" and layout.distillation:
        return "it has two class tokens, and the published head takes one: take the linear lens"
    return None


def attach(module: Any, kind: Kind) -> nn.ModuleList:
    """Give a model new heads, one per block but the last, where the weights are. Those that it has are kept."""
    if (there := getattr(module, PLACES[kind], None)) is not None:
        return there
    if reason := why_no_lens(module, kind):
        raise UnsupportedModelError(f"{type(module).__name__} cannot have a {kind} lens: {reason}.")
    layout, weight = derive_layout(module), next(module.parameters())

    def head() -> nn.Module:
        if kind == "linear":
            return Translator(layout.width, layout.width)
        return RefinedHead(layout.width, layout.class_tokens == 1)

    heads = nn.ModuleList(head() for _ in range(layout.blocks - 1)).to(weight.device, weight.dtype)
    setattr(module, PLACES[kind], heads.train(module.training))
    return heads


def kinds_of(module: nn.Module) -> tuple[Kind, ...]:
    """The learnt lenses that a model has."""
    return tuple(kind for kind, place in PLACES.items() if getattr(module, place, None) is not None)


def attach_named(module: Any, names: Iterable[str], where: str) -> list[str]:
    """Make room for the heads that weights with these names bring, and say so; strict loading comes after."""
    found = {match[1] for name in names if (match := _NAMES.match(name))}
    remarks = []
    for kind, place in PLACES.items():
        if place not in found:
            continue
        attach(module, kind)
        remarks.append(
            f"{where} brings a learnt lens, {ABOUT[kind]}: to_class_space(x, head={kind!r}, block=...) and the "
            "class-space analyses read with it. The model itself does not use it and answers as it does without."
        )
    return remarks


def without_lenses(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights without those of learnt lenses, which belong to the blocks that they were trained on."""
    return {name: value for name, value in state.items() if not _NAMES.match(name)}


def check_kind(model: Model, kind: Kind) -> None:
    if kind not in kinds_of(model.module):
        raise UnsupportedModelError(
            f"{model.name} has no {kind} lens: train one with `vitscope train --refine {model.name} --refine-kind "
            f"{kind}`, and open the folder that it makes."
        )


def read_learnt(model: Model, x: Tensor, kind: Kind, block: int | None) -> Tensor:
    """Logits of a block's output through its learnt head.

    linear: tokens (..., C) -> (..., K). refined: whole images (B, N, C) -> (B, K). The last block is read as the model
    reads it: its tokens by the plain projection, its images by the model's own readout.
    """
    check_kind(model, kind)
    blocks = len(blocks_of(model.module))
    if block is None or not -blocks <= block < blocks:
        raise VitscopeError(
            f"head={kind!r} has one head per block: say which, block=0 to {blocks - 1} (not {block!r}), and give what "
            "its hook_resid_post holds."
        )
    if kind == "linear":
        return model.to_class_space(translate(model, x, block % blocks))
    layout = model.layout
    if x.ndim != 3 or x.shape[1] != layout.tokens:
        raise VitscopeError(
            f"head='refined' reads whole images, all {layout.tokens} tokens of them: (B, {layout.tokens}, "
            f"{layout.width}), not {tuple(x.shape)}."
        )
    if block % blocks == blocks - 1:
        return readout_logits(model, x)
    return heads_of(model.module)[0](refine(model.module, layout, x, block % blocks))


def translate(model: Model, x: Tensor, block: int) -> Tensor:
    """Tokens (..., C) of a block as they would be at the end, by its affine map; those of the last block are."""
    translators: Any = getattr(model.module, PLACES["linear"])
    return x if block == len(translators) else translators[block](x)


def refine(module: Any, layout: Layout, x: Tensor, block: int) -> Tensor:
    """What the model's head reads of whole images (B, N, C) of a block, by its head of refinement: (B, C)."""
    heads: Any = getattr(module, PLACES["refined"])
    x = before_head(module, x)
    patches = x[:, layout.image].transpose(1, 2).unflatten(2, layout.grid)  # (B, C, h, w)
    return heads[block](patches, x[:, 0] if layout.class_tokens else None)


def read_whole(model: Model, x: Tensor, kind: str, block: int) -> Tensor:
    """What a block's output (B, N, C) says of images, (B, K): by a learnt head, or else as if it were the last."""
    if kind == "refined":
        return read_learnt(model, x, "refined", block)
    return readout_logits(model, translate(model, x, block) if kind == "linear" else x)
