"""The streaming object of `memories.py`."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any, ClassVar

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import ClassSpaceAnalysis, with_rows
from vitscope.analyses.class_space.memories import (
    BEST,
    LAYERS,
    agreement_test,
    best_memories,
    class_directions,
    class_value_agreement,
    coefficients,
    compositionality,
    key_value_agreement,
    memory_classes,
    published_test,
    value_vectors,
)
from vitscope.analyses.class_space.memory_tables import class_names, memory_names, outcome_table
from vitscope.analyses.class_space.memory_tests import drawn_classes
from vitscope.analyses.class_space.projection import Projector, largest
from vitscope.analyses.class_space.sharing import Readings
from vitscope.analyses.control import shared_twin
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.intervals import share_columns
from vitscope.statistics.permutation import holm

SHARES = ("agreement", "composed", "agreement_null")  # agree, composed, agree with a class at random
TESTS = 9999  # sign flips of the weights' test: cheap, and needed for p < 0.05 after correction over many blocks


@register_analysis("class_space.memories")
class Memories(ClassSpaceAnalysis):
    """Class-value agreement of the weights, key-value agreement rate and compositionality, for attention and MLP.

    In a distilled model `head` also says whose class directions count; with 'own' those of the head that reads a token.
    coefficients: of the MLP, 'post' (after the activation) or 'pre'; default: post, or pre for variant='code'.
    names: also list every memory with the class that it points to most, by name.
    """

    keys: ClassVar = {
        "class_space_memories": ["block", "layer", "tokens"],
        "class_space_memories_by_outcome": ["block", "layer", "outcome"],
    }
    # a model with random weights may be right on no image at all
    optional = tuple(f"{name}_control" for name in ("agreement", "agreement_low", "agreement_high", "n_images"))

    def __init__(self, *, coefficients: str | None = None, names: bool = False, **common: Any) -> None:
        super().__init__(**common)
        if coefficients not in (None, "post", "pre"):
            raise VitscopeError(f"coefficients={coefficients!r} is not known: expected 'post' or 'pre'.")
        self.coefficients, self.names = coefficients, names

    @property
    def activation(self) -> str:
        return self.coefficients or ("pre" if self.variant == "code" else "post")

    def needs(self, model: Model) -> list[str]:
        inner = ["blocks.*.attn.hook_z", f"blocks.*.mlp.hook_{self.activation}"]
        return ["blocks.*.hook_attn_out", "blocks.*.hook_mlp_out", *inner]

    def start_sums(self, model: Model) -> None:
        self.model = model
        twin = shared_twin(model, self.seed)
        self.pieces = self.projector.pieces(self.selection.first, len(self.selection))  # tokens by the head they take
        twin_heads = {head.name: head for head in Projector(twin, self.head).parts.values()}
        best: dict[tuple[str, str], list[Tensor]] = {}
        top_class: dict[tuple[str, str], list[Tensor]] = {}
        self.agreement, self.agreement_control = {}, {}  # (block, layer, head): (K,)
        final_norm = scaled = self.variant != "code"
        for _, _, head in self.pieces:
            directions = class_directions(model, final_norm, head)
            twin_directions = class_directions(twin, final_norm, twin_heads[head.name])
            for block, layer in product(range(self.layout.blocks), LAYERS):
                values = value_vectors(model, block, layer, scaled)
                if self.activation == "pre" and layer == "mlp":
                    self._check_gate(model, block, values)
                best.setdefault((layer, head.name), []).append(best_memories(directions, values))  # (K, 5)
                top_class.setdefault((layer, head.name), []).append(memory_classes(directions, values))  # (M,)
                _check_widths(model, layer, top_class[layer, head.name])
                key = block, layer, head.name
                self.agreement[key] = class_value_agreement(directions, values).amax(1).cpu()
                random_values = value_vectors(twin, block, layer, scaled)
                self.agreement_control[key] = class_value_agreement(twin_directions, random_values).amax(1).cpu()
        self.best = {key: torch.stack(found) for key, found in best.items()}  # (layer, head): (L, K, 5)
        self.top_class = {key: torch.stack(found) for key, found in top_class.items()}  # (layer, head): (L, M)
        self.start_clusters("tokens", len(SHARES), self.layout.blocks, len(LAYERS))
        # key-value agreement of the class token, by whether the image is classified rightly: (wrong, right)
        self.sums |= {key: zeros(self.layout.blocks, len(LAYERS), 2) for key in ("outcome_n", "outcome_hits")}
        self._active: list[Tensor] = []  # block by block, of attention and MLP: the most activated memories
        self._tops: list[Tensor] = []  # and the layer's top class

    @staticmethod
    def _check_gate(model: Model, block: int, values: Tensor) -> None:
        mlp = model.blocks[block].mlp
        first = getattr(mlp, "fc1", None)
        if not isinstance(first, torch.nn.Linear) or first.out_features != values.shape[1]:
            raise VitscopeError(
                f"{model.name} has a gated MLP: what enters its activation is not one coefficient per memory. "
                "Use coefficients='post'."
            )

    def read(self, block: int, points: Mapping[str, Tensor], readings: Readings) -> None:
        if block == 0:
            self._active, self._tops = [], []
        names = {"attn": "attn.hook_z", "mlp": f"mlp.hook_{self.activation}"}
        for layer in LAYERS:
            value = readings.rows(points[f"blocks.{block}.{names[layer]}"])
            self._active.append(largest(coefficients(self.model, block, layer, value, self.selection.where), BEST))
        self._tops += [r.top for r in readings.get(block, points, *(f"hook_{layer}_out" for layer in LAYERS))]

    def sum_up(self, readings: Readings, batch: Batch) -> None:
        assert batch.logits is not None
        right = (readings.rows(batch.logits).argmax(1).cpu() == readings.labels).long()
        outcome = torch.nn.functional.one_hot(right, 2).double()  # (B, 2)
        known, other = readings.images.tolist(), self.variant != "code"
        drawn = drawn_classes(known, readings.labels, self.projector.classes, self.seed, other)
        for number, layer in enumerate(LAYERS):
            active = torch.stack(self._active[number :: len(LAYERS)])  # (L, B, n, 5)
            tops = torch.stack(self._tops[number :: len(LAYERS)]).to(active.device)  # (L, B, n)
            parts = []
            for start, stop, head in self.pieces:
                some = active[:, :, start:stop]
                agree, null = (
                    key_value_agreement(some, self.best[layer, head.name][:, classes.to(active.device)])  # (L, B, 5)
                    for classes in (readings.labels, drawn)
                )
                composed = compositionality(some, self.top_class[layer, head.name], tops[:, :, start:stop])
                parts.append(torch.stack([agree, composed, null], 1))
            values = torch.cat(parts, -1).double().cpu()  # (L, 3, B, n)
            self.add_clusters("tokens", (slice(None), number), values, readings.members)
            if "class" in self.groups:
                self.sums["outcome_n"][:, number].add_(outcome.sum(0))
                self.sums["outcome_hits"][:, number].add_(values[:, 0, :, 0] @ outcome)
        self._active, self._tops = [], []

    def tables(self) -> dict[str, pd.DataFrame]:
        rows, outcomes = [], []
        for block in range(self.layout.blocks):
            for number, layer in enumerate(LAYERS):
                for g, group in enumerate(self.groups):
                    means = [self.mean_of("tokens", (block, number), v, g, "share") for v in range(len(SHARES))]
                    found = [mean for mean in means if mean is not None]  # none: no token of this kind was seen
                    row: dict[str, object] = {"block": block, "layer": layer, "tokens": group}
                    for name, mean in zip(SHARES, found):
                        row |= mean.columns(name, 100)
                    rows += [row | {"n_tokens": mean.tokens, "n_images": mean.images} for mean in found[:1]]
                outcomes += self._by_outcome(block, number, layer)
        tables = {"class_space_memories": pd.DataFrame(rows), "class_space_value_agreement": self._weights_table()}
        tables |= {"class_space_memories_by_outcome": pd.DataFrame(outcomes)} if outcomes else {}
        tables |= {"class_space_memory_classes": self._names_table()} if self.names else {}
        compared = outcome_table(self._outcomes(), self.variant == "code")
        return with_rows(tables | ({"class_space_memories_right_wrong": compared} if compared is not None else {}))

    def _outcomes(self) -> dict[tuple[int, str], tuple[int, int, int, int]]:
        """(right_hits, right, wrong_hits, wrong) of each block and layer."""
        found: dict[tuple[int, str], tuple[int, int, int, int]] = {}
        for block, (number, layer) in product(range(self.layout.blocks), enumerate(LAYERS)):
            hits, n = (self.sums[key][block, number].round().long().tolist() for key in ("outcome_hits", "outcome_n"))
            found[block, layer] = hits[1], n[1], hits[0], n[0]
        return found

    def _names_table(self) -> pd.DataFrame:
        name = class_names(self.projector.classes, self.model.classes, self.setting.classes)
        exact, frames = self.variant != "code", []
        for _, _, head in self.pieces:
            directions = class_directions(self.model, exact, head)
            for block, layer in product(range(self.layout.blocks), LAYERS):
                columns = memory_names(block, layer, directions, value_vectors(self.model, block, layer, exact), name)
                frames.append(pd.DataFrame(columns).assign(head=head.name))
        return pd.concat(frames, ignore_index=True)

    def _by_outcome(self, block: int, number: int, layer: str) -> list[dict[str, object]]:
        rows: list[dict[str, object]] = []
        for right, outcome in enumerate(("wrong", "right")):
            n = float(self.sums["outcome_n"][block, number, right])
            hits = float(self.sums["outcome_hits"][block, number, right])
            if n:  # 0 of N right: that row is left out, the other stands
                key = {"block": block, "layer": layer, "outcome": outcome}
                rows.append(key | share_columns("agreement", hits, n) | {"n_images": round(n)})
        return rows

    def _weights_table(self) -> pd.DataFrame:
        frames = []
        for layer, (_, _, head) in product(LAYERS, self.pieces):
            rows = []
            for block in range(self.layout.blocks):
                trained, control = (a[block, layer, head.name] for a in (self.agreement, self.agreement_control))
                p = agreement_test(trained, control, TESTS, self.seed)
                means = {"mean": float(trained.mean()), "mean_control": float(control.mean())}
                spread = {f"q{q:02d}": float(trained.quantile(q / 100)) for q in (5, 50, 95)}
                tests = {"p": p} | ({"p_wilcoxon": published_test(trained, control)} if self.variant == "code" else {})
                rows.append({"block": block, "layer": layer, "head": head.name, **means, **spread, **tests})
            frames.append(pd.DataFrame(rows).assign(p_holm=holm([float(r["p"]) for r in rows])))
        return pd.concat(frames, ignore_index=True).assign(n_classes=self.projector.classes)

    def summary(self) -> dict[str, Headline]:
        table = self.tables().get("class_space_memories")
        if table is None:  # no image has a label
            return {}
        image = table[table["tokens"] == ("image" if "image" in self.groups else "class")]
        figures = {}
        for layer in LAYERS:
            best = image[image["layer"] == layer].sort_values("agreement").iloc[-1]
            note = (
                f"largest over blocks (block {best['block']}), {best['tokens']} tokens, coefficients {self.activation}"
            )
            figures[f"key_value_agreement_{layer}"] = Headline(
                float(best["agreement"]), "%", int(best["n_images"]), note
            )
        return figures


def _check_widths(model: Model, layer: str, memories: list[Tensor]) -> None:
    """All blocks are counted in one go, so they must have equally many memories."""
    first, last = len(memories[0]), len(memories[-1])
    if first != last:
        raise UnsupportedModelError(
            f"{model.name} has {first} memories in the {layer} layer of block 0 and {last} in that of block "
            f"{len(memories) - 1}: memories need blocks of equal width. Leave out class_space.memories."
        )
