"""One forward pass of one input, and all that the page draws of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from vitscope.analyses.attention_facts import attention_facts
from vitscope.analyses.class_space.ranks import identifiability, true_rank
from vitscope.capture import Cache, Edit
from vitscope.errors import UnsupportedModelError
from vitscope.explorer.contributions import contributions, points_needed, why_no_contributions
from vitscope.explorer.subjects import Subject
from vitscope.explorer.transfer import MOST, pack, quantise
from vitscope.models import Model
from vitscope.models.readout import readout_logits

TOP = 5  # classes whose curves are drawn
MOST_CLASSES = 5_000  # of which every block's answer is sent whole
ANSWERS = 8  # of the model's answer, with their probabilities


@dataclass
class Pass:
    """What is kept of a forward pass. Everything without the batch of one."""

    logits: Tensor  # (K,): the model's own answer; of a text the one behind its last token
    residuals: Tensor  # (L + 1, N, C): before block 0, then after each block
    kept: dict[str, Tensor]  # points for contributions
    levels: Tensor  # (L, H, N, N) uint8 or int8, or empty where attention cannot be read
    scales: Tensor  # (L, H, N)
    readout: Tensor | None  # (L + 1, K): the answer read off every block
    notes: list[str] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return self.residuals.shape[1]


def run(model: Model, subject: Subject, edits: Mapping[str, Edit], check: Callable[[], None] = lambda: None) -> Pass:
    """The forward pass, under edits. `check` is called after every block and may raise."""
    facts = attention_facts(model)
    names = ["blocks.*.hook_resid_post", "blocks.0.hook_resid_pre", *points_needed(model)]
    names += [] if facts.missing else ["blocks.*.attn.hook_pattern"]
    residuals: list[Tensor] = []
    levels: list[Tensor] = []
    scales: list[Tensor] = []
    kept: dict[str, Tensor] = {}

    def on_block(block: int, points: Cache) -> None:
        check()
        if block == 0:
            residuals.append(points["blocks.0.hook_resid_pre"][0])
        residuals.append(points[f"blocks.{block}.hook_resid_post"][0])
        pattern = points.pop(f"blocks.{block}.attn.hook_pattern", None)
        if pattern is not None:
            found = quantise(pattern[0], facts.negative)
            levels.append(found[0])
            scales.append(found[1])
        kept.update({name: value[0] for name, value in points.items() if not name.endswith("hook_resid_post")})

    with torch.no_grad(), model.edits(edits):
        logits = model.stream(subject.inputs, names, on_block)
    if logits.ndim > (3 if model.row.text else 2):
        raise UnsupportedModelError(
            f"{model.name} answers with {tuple(logits.shape)}, more than one row of classes per picture: the explorer "
            "cannot show that yet."
        )
    stacked = torch.stack(residuals)
    notes = [f"Attention is not shown: {facts.missing}"] if facts.missing else []
    empty = torch.empty(0)
    return Pass(
        logits=logits[0, -1] if logits.ndim == 3 else logits[0],
        residuals=stacked,
        kept=kept,
        levels=torch.stack(levels) if levels else empty,
        scales=torch.stack(scales) if scales else empty,
        readout=_readout(model, stacked),
        notes=notes,
    )


@torch.no_grad()
def _readout(model: Model, residuals: Tensor) -> Tensor | None:
    """(L + 1, K): the model's way to its answer, taken from every block as if it were the last. Of a text the answer
    is what the last token says."""
    if model.why_no_class_space() or (model.num_classes > MOST_CLASSES and not model.row.text):
        return None
    if model.row.text:
        return model.to_class_space(residuals[:, -1])
    try:
        return readout_logits(model, residuals)
    except UnsupportedModelError:
        return None


@torch.no_grad()
def view(model: Model, seen: Pass, subject: Subject, chosen: int | None) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Head and arrays of the transfer, for one chosen class or word (None: the model's answer)."""
    answer = int(seen.logits.argmax())
    chosen = answer if chosen is None else chosen
    probabilities = seen.logits.double().softmax(-1)
    shown = probabilities.topk(min(ANSWERS, len(probabilities))).indices.tolist()
    shown += [c for c in (chosen, subject.label) if c >= 0 and c not in shown]
    head: dict[str, Any] = {
        "answer": answer,
        "chosen": chosen,
        "label": subject.label,
        "answers": [[c, float(probabilities[c]), float(seen.logits[c])] for c in shown],
        "notes": list(seen.notes),
        "words": list(subject.words),
        "tokens": seen.tokens,
        "readable": True,
    }
    arrays: dict[str, Tensor] = {"norm": seen.residuals.norm(dim=-1)}  # (L + 1, N)
    if subject.pixels is not None:
        arrays["picture"] = subject.pixels.mul(255).round().to(torch.uint8).permute(1, 2, 0)
    reason = model.why_no_class_space()
    if reason:
        head |= {"readable": False}
        head["notes"].append(f"Blocks cannot be read in class space: {reason}.")
    else:
        arrays |= _readings(model, seen.residuals, chosen)
        if seen.readout is not None:
            arrays |= _answers(seen.readout, chosen) if model.row.text else {"readout": seen.readout}
    arrays |= _parts(model, seen, chosen, head)
    if seen.levels.numel():
        arrays["first"] = (seen.levels[:, :, 0].float() * seen.scales[:, :, :1]).mean(1)  # (L, N)
        size = sum(a.numel() * a.element_size() for a in arrays.values())
        head["whole"] = size + seen.levels.numel() + 4 * seen.scales.numel() + 20_000 <= MOST
        if head["whole"]:
            arrays |= {"attention": seen.levels, "scale": seen.scales}
    else:
        head["whole"] = None  # there is none
    return head, arrays


def _answers(readout: Tensor, chosen: int) -> dict[str, Tensor]:
    """Of a vocabulary, which is too large to be sent: every block's word, its probability, and the chosen word's."""
    probabilities = readout.double().softmax(-1)  # (L + 1, K)
    p, best = probabilities.max(-1)
    return {"said": best.int(), "said_p": p, "chosen_p": probabilities[:, chosen]}


def _readings(model: Model, residuals: Tensor, chosen: int) -> dict[str, Tensor]:
    """Every token of every block through the model's own head, from the last block back to the embedding."""
    blocks, tokens = residuals.shape[:2]
    k = min(TOP, model.num_classes)
    logit, r = residuals.new_empty(blocks, tokens), residuals.new_empty(blocks, tokens)
    top = torch.empty(blocks, tokens, k, dtype=torch.int32)
    top_logit, curves = residuals.new_empty(blocks, tokens, k), residuals.new_empty(blocks, tokens, k)
    final = torch.empty(0)
    target = torch.full((tokens,), chosen)
    for block in reversed(range(blocks)):
        logits = model.to_class_space(residuals[block])  # (N, K)
        values, best = logits.topk(k, -1)
        final = best if block == blocks - 1 else final
        top[block], top_logit[block] = best.int(), values
        curves[block] = logits.gather(-1, final)
        logit[block] = logits[:, chosen]
        r[block] = identifiability(true_rank(logits, target, where=f"block {block - 1}"), logits.shape[-1])
    return {"logit": logit, "identifiability": r, "top": top, "top_logit": top_logit, "curves": curves}


def _parts(model: Model, seen: Pass, chosen: int, head: dict[str, Any]) -> dict[str, Tensor]:
    reason = why_no_contributions(model)
    if reason:
        head["why_no_parts"] = reason
        return {}
    found = contributions(model, seen.kept, seen.residuals[-1], chosen)
    head |= {"constant": found.constant, "has_heads": found.heads is not None}
    arrays = {"part_embedding": found.embedding, "part_mlp": found.mlp, "part_total": found.total}
    return arrays | {"part_attention": found.attention} | ({} if found.heads is None else {"part_heads": found.heads})


def rows(seen: Pass, token: int) -> bytes:
    """Where one token looks and who looks at it, for models whose attention is too large for one transfer."""
    values = seen.levels[:, :, :, token].float() * seen.scales  # (L, H, N)
    column, scale = quantise(values, seen.levels.dtype == torch.int8)
    return pack(
        {"token": token},
        {
            "row": seen.levels[:, :, token],
            "row_scale": seen.scales[:, :, token],
            "column": column,
            "column_scale": scale,
        },
    )
