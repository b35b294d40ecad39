"""What an analysis must know of a model's attention before the first image, and of patterns that are no softmax.

timm's attentions, vitscope's own and those of the text models in `architectures/text_rows.py` are known by their code.
Any other one, of the user's own or with a patched forward pass, is tried out with one picture of noise, or with a text
of a few tokens: does it show its points, and what is its pattern?
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from vitscope.analyses.one_pass import evaluating
from vitscope.architectures.families import block_row
from vitscope.architectures.layout import input_size
from vitscope.architectures.text_rows import BLOCKS
from vitscope.capture import Cache, attention_scores
from vitscope.capture.points import is_attention_point
from vitscope.errors import UnsupportedModelError
from vitscope.models import Model

NO_SHARES = "the rows of its attention do not sum to 1: what is looked at are shares, each row divided by its sum"


@dataclass(frozen=True)
class AttentionFacts:
    """Of all blocks together; the values are those of softmax attention."""

    missing: str | None = None  # why q, k, v, scores, pattern and z cannot be read and edited
    softmax: bool = True  # every pattern is softmax(q k^T / sqrt(D) + bias)
    shares: bool = True  # every row of a pattern sums to 1
    negative: bool = False  # a weight is below 0


TEXT_MODULES = frozenset(name.rpartition(".")[0] for name in BLOCKS)  # transformers.models.bert.modeling_bert, ...
FEW = 12  # tokens of the text that is tried out

_FACTS: WeakKeyDictionary[Model, tuple[list[Any], AttentionFacts]] = WeakKeyDictionary()


def attention_facts(model: Model) -> AttentionFacts:
    """Costs a forward pass of one image or text, once, where an attention is not known by its code."""
    attentions = [block.get_submodule(block_row(block).attn) for block in model.blocks]
    if all(_is_known(attention) for attention in attentions):
        return AttentionFacts()
    code = [(attention, _forward(attention)) for attention in attentions]  # what a patch or a conversion changes
    found = _FACTS.get(model)
    if found is None or found[0] != code:
        found = _FACTS[model] = code, _try_out(model)
    return found[1]


def check_points(model: Model, names: Iterable[str]) -> None:
    """UnsupportedModelError, with the reason, if points are among these that the model's attention does not show."""
    if any(is_attention_point(name) for name in model.resolve_points(names)):
        missing = attention_facts(model).missing
        if missing is not None:
            raise UnsupportedModelError(missing)


def _forward(attention: nn.Module) -> Any:
    return vars(attention).get("forward", type(attention).forward)


def _is_known(attention: nn.Module) -> bool:
    """Its code is timm's, vitscope's or a text model's, so it makes the fused call: nothing to try out."""
    from vitscope.attention.conversion import SOURCES
    from vitscope.attention.module import AttentionModule

    forward = _forward(attention)
    if not getattr(attention, "fused_attn", True) or hasattr(forward, "__wrapped__"):
        return False
    if forward is AttentionModule.forward:
        return str(type(attention).attend.__module__).startswith("vitscope.attention.")  # type: ignore[attr-defined]
    if type(attention).__module__ in TEXT_MODULES:
        return forward is type(attention).forward and forward.__module__ == type(attention).__module__
    return f"{forward.__module__}.{forward.__qualname__}".removesuffix(".forward") in SOURCES


def _try_out(model: Model) -> AttentionFacts:
    softmax, shares, negative = True, True, False

    def on_block(block: int, points: Cache) -> None:
        nonlocal softmax, shares, negative
        at = f"blocks.{block}.attn.hook_"
        q, k, pattern = (points[at + kind] for kind in ("q", "k", "pattern"))
        scale = model.layout.scale(block) if model.layout.scales else None
        expected = attention_scores(q, k, points.get(at + "bias"), scale).softmax(-1)
        near = max(1e-3, 4 * torch.finfo(pattern.dtype).eps)  # 1 / (N + 1), as a new sigmoid has, is not near 1 / N
        softmax &= expected.shape == pattern.shape and torch.allclose(pattern, expected, rtol=near, atol=1e-6)
        shares &= bool((row_sums(pattern) == 1).all())
        negative |= bool((pattern < 0).any())

    names = [f"blocks.*.attn.hook_{kind}" for kind in ("q", "k", "bias", "pattern")]
    with evaluating(model.module), torch.no_grad():
        try:
            model.stream(model.place(_noise(model)), names, on_block, edited=False)
        except UnsupportedModelError as error:
            return AttentionFacts(str(error), softmax=False, shares=False)
    return AttentionFacts(None, softmax, shares, negative)


def _noise(model: Model) -> Tensor:
    """A picture of noise (1, C, H, W), or a text of a few tokens (1, N) that the embedding knows."""
    if model.row.text:
        embedding: Any = model.module.get_submodule(model.row.embedding)
        return (7 * torch.arange(min(FEW, model.layout.tokens)) % embedding.num_embeddings)[None]
    return torch.randn(1, *input_size(model.module), generator=torch.Generator().manual_seed(0))


def row_sums(pattern: Tensor) -> Tensor:
    """Sums of the rows of a pattern, (..., N, M) -> (..., N, 1): exactly 1 where they are it up to rounding."""
    total = pattern.sum(-1, keepdim=True, dtype=torch.promote_types(pattern.dtype, torch.float32))
    near = max(1e-4, 4 * torch.finfo(pattern.dtype).eps)
    return torch.where((total - 1).abs() < near, 1.0, total).to(pattern.dtype)


def shares_of(pattern: Tensor) -> Tensor:
    """Each row divided by its sum: to which tokens a query gives what share of its attention."""
    total = row_sums(pattern)
    if bool((pattern < 0).any()) or bool((total == 0).any()):
        raise UnsupportedModelError(
            "A pattern has negative weights or a row of zeros: there is no telling what share of the attention goes "
            "where. Leave out what looks at shares (the analysis 'attention', rollout, the attack lens) by naming the "
            "others: --only accuracy,separation (in Python: a list of names)."
        )
    return pattern / total


def gives_shares(model: Model) -> bool:
    """Does every row sum to 1 as it stands? An edit of a pattern may do with it what it likes."""
    facts = attention_facts(model)
    return facts.shares and not facts.negative and not any(n.endswith("hook_pattern") for n in model.active_edits())
