"""Which image tokens did the answer come from? Relevance maps, for a whole batch at once.

Each method gives (B, T): a number per image token, larger = more relevant for the class asked about.

| method | definition | passes |
|---|---|---|
| class_gradients | -d CE(E ln(attn_out), class) / d attention, sum over heads, blocks (Vilas et al. 2023) | 1 forward |
| class_gradients_code | the same with softmax taken twice, as the published code does | 1 forward |
| class_gradients_probability, class_gradients_logit | of the class's probability or logit instead of -CE | 1 forward |
| chefer | R = (I + C_L) ... (I + C_1), C = mean over heads of (dA * A)+ (Chefer et al. 2021) | 1 forward + 1 backward |
| rollout | R = A_L ... A_1 with A = (mean over heads + I) / 2 (Abnar & Zuidema 2020) | 1 forward |
| attention | the last block's pattern (or a chosen one), mean over heads | 1 forward |
| gradient_x_input | d logit / d pixel * pixel, summed over each patch | 1 forward + 1 backward |
| random | drawn from (seed, image) | none |

What is read is the row of the token(s) that the model answers from: the class token, both tokens of distilled models,
the mean of the image tokens in pooled ones. Of a product of matrices only that row is needed, so it is multiplied from
the left: N^2 per block instead of N^3. Gradients of attention weights follow from those of z = A v: dA = dz v^T.
Class gradients and attention can be asked of one block and one head (`Place`); the others are made of all blocks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.analyses.attention_facts import gives_shares, shares_of
from vitscope.analyses.class_space.objectives import evidence
from vitscope.analyses.naming import check_known
from vitscope.errors import VitscopeError
from vitscope.models import Model
from vitscope.models.readout import readout_logits, readout_weights


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """No gradients of weights inside the block: half of a backward pass is saved."""
    changed = [p for p in module.parameters() if p.requires_grad]
    for p in changed:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in changed:
            p.requires_grad_(True)


def _as_leaf(value: Tensor, _: object) -> Tensor:
    return value.detach().requires_grad_()


def _cut(value: Tensor, _: object) -> Tensor:
    return value.detach()


@dataclass(frozen=True)
class Place:
    """Where a map is read off: one block, one head of attention, or all (None)."""

    block: int | None = None
    head: int | None = None

    @property
    def everywhere(self) -> bool:
        return self.block is None and self.head is None

    @property
    def heads(self) -> slice:
        return slice(None) if self.head is None else slice(self.head, self.head + 1)

    def check(self, model: Model) -> None:
        for name, number, many in (("block", self.block, model.layout.blocks), ("head", self.head, model.layout.heads)):
            if number is not None and not 0 <= number < many:
                raise VitscopeError(f"{model.name} has {name}s 0 to {many - 1}; there is no {name} {number}.")

    def __str__(self) -> str:
        words = [f"{name} {n}" for name, n in (("block", self.block), ("head", self.head)) if n is not None]
        return ", ".join(words)


EVERYWHERE = Place()


def class_gradients(
    model: Model, images: Tensor, classes: Tensor, place: Place = EVERYWHERE, *, objective: str = "cross_entropy"
) -> Tensor:
    """How much attending to a token brings each block's attention output closer to the class, by `objective`.

    The graph reaches from a block's z to its projected attention output and is freed before the next block.
    """
    weights = readout_weights(model).to(images.device)
    rows = weights.nonzero().flatten()  # tokens that are read
    total = images.new_zeros(len(images), model.layout.tokens)

    def on_block(block: int, points: dict[str, Tensor]) -> None:
        z, v = points[f"blocks.{block}.attn.hook_z"], points[f"blocks.{block}.attn.hook_v"]
        logits = readout_logits(model, points[f"blocks.{block}.hook_attn_out"])
        (dz,) = torch.autograd.grad(evidence(logits, classes, objective).sum(), z)  # (B, H, N, D)
        heads = place.heads
        total.add_(torch.einsum("bhd,bhnd->bn", dz[:, heads, rows].sum(2), v.detach()[:, heads]))

    edits = {"blocks.*.attn.hook_z": _as_leaf, "blocks.*.hook_resid_mid": _cut}
    which = "*" if place.block is None else place.block
    names = [f"blocks.{which}.{name}" for name in ("attn.hook_z", "attn.hook_v", "hook_attn_out")]
    with frozen(model.module), torch.enable_grad(), model.edits(edits):
        model.stream(images, names, on_block)
    return total[:, model.layout.image]


def chefer(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Gradient-weighted attention relevancy."""
    blocks = range(model.layout.blocks)
    names = [f"blocks.*.attn.hook_{kind}" for kind in ("pattern", "z", "v")]
    with frozen(model.module), torch.enable_grad(), model.edits({"blocks.0.attn.hook_z": _as_leaf}):
        logits, cache = model.run_with_cache(images, names)
        chosen = logits.gather(1, classes[:, None]).sum()
        gradients = torch.autograd.grad(chosen, [cache[f"blocks.{b}.attn.hook_z"] for b in blocks])
    row = readout_weights(model).to(images).expand(len(images), 1, -1)  # (B, 1, N)
    for b in reversed(blocks):
        pattern, v = (cache[f"blocks.{b}.attn.hook_{kind}"].detach() for kind in ("pattern", "v"))
        relevance = (gradients[b] @ v.transpose(-2, -1)).mul_(pattern).clamp_(min=0).mean(1)  # (B, N, N)
        row = row + row @ relevance
    return row[:, 0, model.layout.image]


def _patterns(model: Model, images: Tensor) -> list[Tensor]:
    """Every block's pattern in shares, mean over heads, (B, N, N); heads are let go block by block."""
    found: list[Tensor] = []
    shares = gives_shares(model)

    def on_block(block: int, points: Mapping[str, Tensor]) -> None:
        (pattern,) = points.values()
        found.append((pattern if shares else shares_of(pattern)).mean(1))

    with torch.no_grad():
        model.stream(images, "blocks.*.attn.hook_pattern", on_block)
    return found


def rollout(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Attention rollout: half of each layer is the skip connection. The class plays no part."""
    row = readout_weights(model).to(images).expand(len(images), 1, -1)
    for pattern in reversed(_patterns(model, images)):
        row = (row + row @ pattern) / 2
    return row[:, 0, model.layout.image]


def attention(model: Model, images: Tensor, classes: Tensor, place: Place = EVERYWHERE) -> Tensor:
    """Raw attention of the last block, unless another is chosen."""
    block = model.layout.blocks - 1 if place.block is None else place.block
    name = f"blocks.{block}.attn.hook_pattern"
    with torch.no_grad():
        _, cache = model.run_with_cache(images, name)
    row, pattern = readout_weights(model).to(images), cache[name][:, place.heads]
    return torch.einsum("n,bhnm->bm", row, pattern)[:, model.layout.image] / pattern.shape[1]


def gradient_x_input(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Gradient of the class logit times the (normalised) pixels, summed over each patch."""
    with frozen(model.module), torch.enable_grad():
        pixels = images.detach().requires_grad_()
        chosen = model(pixels).gather(1, classes[:, None]).sum()
        (gradient,) = torch.autograd.grad(chosen, pixels)
    product = (gradient * images).sum(1, keepdim=True)  # (B, 1, H, W)
    area = model.layout.patch[0] * model.layout.patch[1]
    return (F.avg_pool2d(product, model.layout.patch) * area).flatten(1)


def random_relevance(images: Sequence[int], tokens: int, seed: int = 0, draw: int = 0) -> Tensor:
    """(B, T) uniform numbers that belong to the image, whatever its company."""
    rows = []
    for image in images:
        generator = torch.Generator().manual_seed((seed * 1_000_003 + draw * 7_919 + image * 2_654_435_761) % 2**63)
        rows.append(torch.rand(tokens, generator=generator))
    return torch.stack(rows)


Local = Callable[["Model", Tensor, Tensor, Place], Tensor]
LOCAL: dict[str, Local] = {  # can be asked of one block and one head
    "class_gradients": class_gradients,
    "class_gradients_code": partial(class_gradients, objective="cross_entropy_code"),
    "attention": attention,
    "class_gradients_probability": partial(class_gradients, objective="probability"),
    "class_gradients_logit": partial(class_gradients, objective="logit"),
}
WHOLE: dict[str, Callable[[Model, Tensor, Tensor], Tensor]] = {
    "chefer": chefer,
    "rollout": rollout,
    "gradient_x_input": gradient_x_input,
}
USUAL = ("class_gradients", "class_gradients_code", "chefer", "rollout", "attention", "gradient_x_input")
METHODS = (*USUAL, "class_gradients_probability", "class_gradients_logit")  # the last two on request
RANDOM = "random"
BLIND = ("gradient_x_input", RANDOM)  # look at no attention
COST = {  # (forward passes, backward passes); weights are frozen, so a backward pass costs about one forward
    "class_gradients": (1, 0),
    "class_gradients_code": (1, 0),
    "chefer": (1, 1),
    "rollout": (1, 0),
    "attention": (1, 0),
    "gradient_x_input": (1, 1),
    "class_gradients_probability": (1, 0),
    "class_gradients_logit": (1, 0),
    RANDOM: (0, 0),
}


def check_method(method: str) -> None:
    check_known("relevance method", method, METHODS)


def relevance(model: Model, images: Tensor, classes: Tensor, method: str, place: Place = EVERYWHERE) -> Tensor:
    """Relevance of each image token for `classes` (B,): (B, T) float32. `place`: one block, one head."""
    check_method(method)
    place.check(model)
    if method in LOCAL:
        return LOCAL[method](model, images, classes.to(images.device), place).detach().float()
    if not place.everywhere:
        raise VitscopeError(f"{method} is made of all blocks and heads: {', '.join(LOCAL)} can be asked of {place}.")
    return WHOLE[method](model, images, classes.to(images.device)).detach().float()
