"""What all kernel-PCA analyses have in common: q, k and v of a block, sums per block and head."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.attention_facts import attention_facts, check_points
from vitscope.analyses.base import Analysis, Headline, zeros
from vitscope.analyses.control import check_control
from vitscope.analyses.kpca.eigen import certain_vectors
from vitscope.analyses.kpca.gram import all_finite, double
from vitscope.analyses.kpca.keygram import KeyGram, shared_for
from vitscope.analyses.kpca.texts import Piece, is_causal, pieces, sees_all, text_remarks
from vitscope.architectures.families import block_row
from vitscope.architectures.text_layout import TextLayout
from vitscope.data.batch import Batch
from vitscope.errors import NumericalError, UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.moments import mean_std

OWN, RANDOM = "own", "random"  # column `weights`: the model's own, or drawn at random for the control


class KpcaAnalysis(Analysis):
    """Subclasses implement `start_sums`, `read` and `tables`, and may implement `finish_batch`.

    control: 'random' runs the same architecture with random weights beside the model, at twice the cost.
    every: look at images 0, every, 2 every, ... of the data only: a hundred images say as much as ten thousand.
    per_head: append a row per image, block and head, too (`kpca_*_image_heads`): on disk, memory does not grow.
    """

    default = False  # asked for by name: an eigen-decomposition per head costs more than the forward pass
    variants: Sequence[str] = ("exact", "code")
    axes_needed = False  # D_v axes must exist: refused where there are fewer tokens
    uses_queries = False  # looks at queries, and not at keys and values alone

    def __init__(
        self,
        variant: str = "exact",
        standardised: bool = False,
        control: str | None = None,
        every: int = 1,
        per_head: bool = False,
    ) -> None:
        super().__init__()
        self.control = check_control(control)
        if variant not in self.variants:
            raise VitscopeError(f"variant={variant!r} is not known here: expected one of {', '.join(self.variants)}.")
        if every < 1:
            raise VitscopeError(f"every={every} leaves no image: expected 1 (all) or more.")
        self.variant, self.standardised, self.every, self.per_head = variant, standardised, every, per_head

    # for subclasses

    def start_sums(self, model: Model) -> None:
        raise NotImplementedError

    def read(self, block: int, q: Tensor, k: Tensor, v: Tensor, batch: Batch) -> None:
        raise NotImplementedError

    def finish_batch(self, batch: Batch) -> None:
        """After the last block of a batch."""

    # the contract

    def needs(self, model: Model) -> list[str]:
        return ["blocks.*.attn.hook_[qkv]"]

    def start(self, model: Model) -> None:
        self.layout = layout = model.layout
        if self.axes_needed and layout.tokens < layout.head_dim:
            raise UnsupportedModelError(
                f"{model.name} has {layout.tokens} tokens and heads of size {layout.head_dim}: kernel PCA of N tokens "
                "has at most N axes, and the theorem needs one per head dimension (D_v <= N). Open the model with "
                "larger images or smaller patches, or use kpca.spectrum, kpca.reconstruction and kpca.norms."
            )
        check_points(model, self.needs(model))
        self.shared = shared_for(model)
        self.count = min(layout.head_dim, layout.tokens)  # axes that are looked at: D_v, where there are as many
        self.padded = self.variant == "code" and isinstance(layout, TextLayout) and not layout.causal
        self.remarks = attention_remarks(model) + text_remarks(layout, self.uses_queries, self.padded)
        self.sums = {"n": zeros(1, dtype=torch.int64)}
        if layout.sequence:  # their lengths differ: not every block looks at every one
            self.sums |= {"seen": zeros(layout.blocks, dtype=torch.int64), "tokens": zeros(1, dtype=torch.int64)}
            self.sums["too_short"] = zeros(1, dtype=torch.int64)
        self.start_sums(model)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        named = {name.rpartition("_")[2]: value for name, value in points.items()}
        for piece in self._pieces(batch):
            if self.blocks_of(piece.tokens)[block]:
                self._read_piece(block, named, piece)

    def _read_piece(self, block: int, named: Mapping[str, Tensor], piece: Piece) -> None:
        q, k, v = (self._part(named[name], piece) for name in "qkv")
        for name, value in (("queries", q), ("keys", k), ("values", v)):
            if not self.shared.once(value, "finite", partial(all_finite, value)):
                paths = piece.batch.paths
                raise NumericalError(
                    f"The {name} of block {block} hold NaN or infinity ({paths[0]} to {paths[-1]}). "
                    "Look at the weights, or run the model in float32."
                )
        q, k = (self._scaled(x, block) for x in (q, k))
        if is_causal(self.layout):
            whole = q
            q = self.shared.once(whole, "last", lambda: whole[:, :, -1:])
        self.read(block, q, k, v, piece.batch)
        if "seen" in self.sums:
            self.sums["seen"][block] += len(piece.batch)

    def end_batch(self, batch: Batch) -> None:
        found = self._pieces(batch)
        used = [piece for piece in found if any(self.blocks_of(piece.tokens))]
        if used:
            self.finish_batch(batch)
        self.add("n", torch.tensor([sum(len(piece.batch) for piece in used)]))
        if "seen" in self.sums:
            self.add("tokens", torch.tensor([sum(len(piece.batch) * piece.tokens for piece in used)]))
            short = [len(piece.batch) for piece in found if piece.tokens < self.least]
            self.add("too_short", torch.tensor([sum(short)]))

    def _pieces(self, batch: Batch) -> list[Piece]:
        """The images of a batch that are looked at: all together, or texts by their length."""
        return pieces(batch, self.layout, self.every, self.padded)

    def _part(self, x: Tensor, piece: Piece) -> Tensor:
        """Their part of a point. All analyses get the same tensor, so that they share what is remembered for it."""
        if piece.whole:
            return x
        return self.shared.once(x, ("piece", self.every, self.padded, piece.tokens), lambda: piece.of(x))

    def _scaled(self, x: Tensor, block: int) -> Tensor:
        """Queries or keys for which exp(x.y / sqrt D) is the kernel exp(scale x.y) of the model's own call."""
        factor = self.layout.scale(block) * math.sqrt(self.layout.head_dim)
        if math.isclose(factor, 1.0):
            return x
        return self.shared.once(x, "scaled", lambda: double(x) * math.sqrt(factor))

    @property
    def least(self) -> int:
        """Tokens that a text must have: N of them have N - 1 axes."""
        if not self.layout.sequence:
            return 0
        return 1 + (self.layout.head_dim if self.axes_needed else 1)

    def blocks_of(self, tokens: int) -> list[bool]:
        """Which blocks look at a text of so many tokens."""
        return [tokens >= self.least and sees_all(self.layout, b, tokens) for b in range(self.layout.blocks)]

    def axes_of(self, gram: KeyGram) -> Tensor:
        """The first D_v eigenvectors as columns (B, H, N, D_v); of texts, those that can be told from rounding."""
        assert gram.vectors is not None
        if not self.layout.sequence or self.variant == "code":
            return gram.vectors
        return certain_vectors(gram.eigenvalues, gram.vectors)

    def concerns(self, batch: Batch) -> bool:
        return self.every == 1 or bool((batch.indices % self.every == 0).any())

    def labelled(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Tables that say whose weights they speak of, with a control and without; texts that were left out count."""
        weights = RANDOM if self.setting.control else OWN
        tables = {name: table.assign(weights=weights) for name, table in tables.items()}
        if "seen" not in self.sums:
            return dict(tables)
        self._check_any()
        looked = {name: table[table["n"] > 0].reset_index(drop=True) for name, table in tables.items()}
        return {name: table.assign(too_short=int(self.sums["too_short"])) for name, table in looked.items()}

    def _check_any(self) -> None:
        """UnsuitableDataError where there were texts, and none of them could be looked at."""
        if self.images or not int(self.sums["too_short"]):
            return
        raise UnsuitableDataError(
            f"{self.name}: all {int(self.sums['too_short']):,} texts have fewer than {self.least} tokens. "
            + (
                "Kernel PCA of N tokens has N - 1 axes, and the theorem needs one per head dimension: "
                "give longer texts, or use kpca.spectrum, kpca.reconstruction and kpca.norms."
                if self.axes_needed
                else "Give longer texts."
            )
        )

    def with_control(
        self, own: Mapping[str, pd.DataFrame], control: Mapping[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Rows below each other: column `weights` tells them apart."""
        return {name: pd.concat([table, control[name]], ignore_index=True) for name, table in own.items()}

    @property
    def images(self) -> int:
        return int(self.sums["n"])

    @property
    def seen(self) -> Tensor:
        """(blocks,) int64: how many images each block was looked at for."""
        return self.sums["seen"] if "seen" in self.sums else self.sums["n"].expand(self.layout.blocks)

    def note(self) -> str:
        """The protocol in a few words."""
        parts = [] if self.variant == "exact" else [f"variant {self.variant}"]
        parts += ["standardised per token"] if self.standardised else []
        if short := int(self.sums.get("too_short", 0)):
            parts.append(f"{short:,} texts with fewer than {self.least} tokens left out")
        return "; ".join([*parts, *self.remarks])

    def figure(self, value: Tensor | float, unit: str, note: str) -> Headline:
        """A headline number with the protocol behind its note."""
        return Headline(float(value), unit, self.images, "; ".join(part for part in (note, self.note()) if part))

    # sums of per-image numbers

    def start_moments(self, *keys: str, shape: Sequence[int]) -> None:
        for key in keys:
            self.sums |= {key: zeros(*shape), f"{key}.squared": zeros(*shape)}

    def add_moments(self, key: str, value: Tensor, where: Any = ...) -> None:
        """Add the numbers of a batch (B, *shape), the images first, and their squares."""
        value = value.detach().to("cpu", torch.float64)
        self.sums[key][where] += value.sum(0)
        self.sums[f"{key}.squared"][where] += value.square().sum(0)

    def moments(self, key: str, each: int = 1) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over images, `each` of which gave so many observations."""
        total = self.sums[key]
        count = self.seen.view(-1, *[1] * (total.ndim - 1)) if total.ndim else self.sums["n"][0]
        return mean_std((count * each).clamp_min(1), total, self.sums[f"{key}.squared"])

    def over_blocks(self, key: str) -> Tensor:
        """The mean over images, heads and the blocks that were looked at: ()."""
        mean = self.moments(key)[0]
        return (mean[self.seen > 0] if self.images else mean).mean()

    def heads_table(self, *keys: str, column: str = "metric") -> pd.DataFrame:
        """Tidy: block, head, metric, mean, std, n, from sums (blocks, heads)."""
        frames = []
        for key in keys:
            mean, std = self.moments(key)
            block, head = (i.flatten() for i in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
            cells = {"mean": mean.flatten().numpy(), "std": std.flatten().numpy(), "n": self.seen[block].numpy()}
            frames.append(pd.DataFrame({"block": block.numpy(), "head": head.numpy(), column: key} | cells))
        return pd.concat(frames, ignore_index=True)

    def emit_images(self, table: str, batch: Batch, columns: Mapping[str, Any]) -> None:
        """One row per image of the batch; tensors (B,) become columns, anything else is the same in every row."""
        cells = {key: c.detach().cpu().numpy() if isinstance(c, Tensor) else c for key, c in columns.items()}
        self.emit(table, pd.DataFrame({"image": batch.indices.numpy()} | cells))

    def emit_heads(self, table: str, batch: Batch, block: int, columns: Mapping[str, Any]) -> None:
        """One row per image and head, if asked for; tensors (B, H) become columns, anything else is in every row."""
        if not self.per_head:
            return
        heads = torch.arange(self.layout.heads)
        place = {"image": batch.indices.repeat_interleave(len(heads)), "block": block, "head": heads.repeat(len(batch))}
        cells = {
            key: c.detach().cpu().flatten().numpy() if isinstance(c, Tensor) else c
            for key, c in (place | dict(columns)).items()
        }
        self.emit(table, pd.DataFrame(cells))


def attention_remarks(model: Model) -> list[str]:
    """What a reader must know about this model's q and k."""
    remarks = []
    attentions = [block.get_submodule(block_row(block).attn) for block in model.blocks]
    norms = [getattr(a, n, None) for a in attentions for n in ("q_norm", "k_norm")]
    if any(norm is not None and not isinstance(norm, torch.nn.Identity) for norm in norms):
        remarks.append("q and k are taken after their norm")
    if getattr(model.module, "rope", None) is not None or any(
        name.rpartition(".")[2] == "rotary_emb" for name, _ in model.module.named_modules()
    ):
        remarks.append("q and k are taken after rotary position embedding")
    biased = any(
        getattr(a, n, None) is not None for a in attentions for n in ("rel_pos", "relative_position_bias_table")
    )
    if biased or getattr(model.module, "rel_pos_bias", None) is not None:
        remarks.append("additive attention bias left out: exp(q.k + b) is not the theorem's kernel")
    if not attention_facts(model).softmax:
        remarks.append(
            "the model's attention is not softmax(q.k / sqrt D), which is what is measured on its q, k and v"
        )
    return remarks
