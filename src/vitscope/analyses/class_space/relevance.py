"""Which image tokens did the answer come from? Relevance maps, for a whole batch at once.

Each method gives (B, T): a number per image token, larger = more relevant for the class asked about.

| method | definition | passes |
|---|---|---|
| class_gradients | -d CE(E ln(attn_out), class) / d attention, sum over heads, blocks (Vilas et al. 2023) | 1 forward |
| class_gradients_code | the same with softmax taken twice, as the published code does | 1 forward |
| chefer | R = (I + C_L) ... (I + C_1), C = mean over heads of (dA * A)+ (Chefer et al. 2021) | 1 forward + 1 backward |
| rollout | R = A_L ... A_1 with A = (mean over heads + I) / 2 (Abnar & Zuidema 2020) | 1 forward |
| attention | the last block's pattern, mean over heads | 1 forward |
| gradient_x_input | d logit / d pixel * pixel, summed over each patch | 1 forward + 1 backward |
| random | drawn from (seed, image) | none |

What is read is the row of the token(s) that the model answers from: the class token, both tokens of distilled models,
the mean of the image tokens in pooled ones. Of a product of matrices only that row is needed, so it is multiplied from
the left: N^2 per block instead of N^3. Gradients of attention weights follow from those of z = A v: dA = dz v^T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.analyses.attention_facts import gives_shares, shares_of
from vitscope.analyses.class_space.readout import readout_logits, readout_weights
from vitscope.errors import VitscopeError

if TYPE_CHECKING:
    from vitscope.models import Model


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


def class_gradients(model: Model, images: Tensor, classes: Tensor, *, double_softmax: bool = False) -> Tensor:
    """How much attending to a token brings each block's attention output closer to the class.

    The graph reaches from a block's z to its projected attention output and is freed before the next block.
    """
    weights = readout_weights(model).to(images.device)
    rows = weights.nonzero().flatten()  # tokens that are read
    total = images.new_zeros(len(images), model.layout.tokens)

    def on_block(block: int, points: dict[str, Tensor]) -> None:
        z, v = points[f"blocks.{block}.attn.hook_z"], points[f"blocks.{block}.attn.hook_v"]
        logits = readout_logits(model, points[f"blocks.{block}.hook_attn_out"])
        logits = logits.softmax(-1) if double_softmax else logits
        (dz,) = torch.autograd.grad(F.cross_entropy(logits, classes, reduction="sum"), z)  # (B, H, N, D)
        total.sub_(torch.einsum("bhd,bhnd->bn", dz[:, :, rows].sum(2), v.detach()))

    edits = {"blocks.*.attn.hook_z": _as_leaf, "blocks.*.hook_resid_mid": _cut}
    names = ["blocks.*.attn.hook_z", "blocks.*.attn.hook_v", "blocks.*.hook_attn_out"]
    with frozen(model.module), torch.enable_grad(), model.edits(edits):
        model.stream(images, names, on_block)
    return total[:, model.layout.prefix_tokens :]


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
    return row[:, 0, model.layout.prefix_tokens :]


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
    return row[:, 0, model.layout.prefix_tokens :]


def attention(model: Model, images: Tensor, classes: Tensor) -> Tensor:
    """Raw attention of the last block."""
    last = f"blocks.{model.layout.blocks - 1}.attn.hook_pattern"
    with torch.no_grad():
        _, cache = model.run_with_cache(images, last)
    row = readout_weights(model).to(images)
    return torch.einsum("n,bhnm->bm", row, cache[last])[:, model.layout.prefix_tokens :] / model.layout.heads


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


Method = Callable[["Model", Tensor, Tensor], Tensor]
METHODS: dict[str, Method] = {
    "class_gradients": class_gradients,
    "class_gradients_code": lambda m, x, c: class_gradients(m, x, c, double_softmax=True),
    "chefer": chefer,
    "rollout": rollout,
    "attention": attention,
    "gradient_x_input": gradient_x_input,
}
RANDOM = "random"
BLIND = ("gradient_x_input", RANDOM)  # look at no attention
COST = {  # (forward passes, backward passes); weights are frozen, so a backward pass costs about one forward
    "class_gradients": (1, 0),
    "class_gradients_code": (1, 0),
    "chefer": (1, 1),
    "rollout": (1, 0),
    "attention": (1, 0),
    "gradient_x_input": (1, 1),
    RANDOM: (0, 0),
}


def relevance(model: Model, images: Tensor, classes: Tensor, method: str) -> Tensor:
    """Relevance of each image token for `classes` (B,): (B, T) float32."""
    if method not in METHODS:
        from vitscope.errors import suggest

        raise VitscopeError(
            f"There is no relevance method {method!r}.{suggest(method, METHODS)} Known: {', '.join(METHODS)}."
        )
    return METHODS[method](model, images, classes.to(images.device)).detach().float()
