"""What all kernel-PCA analyses have in common: q, k and v of a block, sums per block and head."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from vitscope.analyses.attention_facts import attention_facts, check_points
from vitscope.analyses.base import Analysis, Headline, zeros
from vitscope.analyses.control import check_control
from vitscope.analyses.kpca.gram import all_finite
from vitscope.analyses.kpca.keygram import shared_for
from vitscope.architectures.families import block_row
from vitscope.errors import NumericalError, UnsupportedModelError, VitscopeError
from vitscope.statistics.moments import mean_std

if TYPE_CHECKING:
    import pandas as pd

    from vitscope.data.batch import Batch
    from vitscope.models import Model


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
        self.remarks = attention_remarks(model)
        self.sums = {"n": zeros(1, dtype=torch.int64)}
        self.start_sums(model)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        named = {name.rpartition("_")[2]: value for name, value in points.items()}
        chosen = self._chosen(batch)
        if len(chosen) == 0:
            return
        q, k, v = (self._rows(named[name], batch) for name in "qkv")
        for name, value in (("queries", q), ("keys", k), ("values", v)):
            if not self.shared.once(value, "finite", partial(all_finite, value)):
                raise NumericalError(
                    f"The {name} of block {block} hold NaN or infinity ({chosen.paths[0]} to {chosen.paths[-1]}). "
                    "Look at the weights, or run the model in float32."
                )
        self.read(block, q, k, v, chosen)

    def end_batch(self, batch: Batch) -> None:
        chosen = self._chosen(batch)
        if len(chosen):
            self.finish_batch(chosen)
            self.add("n", torch.tensor([len(chosen)]))

    def _chosen(self, batch: Batch) -> Batch:
        """The images of a batch that are looked at."""
        if self.every == 1:
            return batch
        where = (batch.indices % self.every == 0).nonzero().flatten()
        return batch.rows(where)

    def _rows(self, x: Tensor, batch: Batch) -> Tensor:
        """Their part of a point. All analyses get the same tensor, so that they share what is remembered for it."""
        if self.every == 1:
            return x
        where = (batch.indices % self.every == 0).nonzero().flatten()
        return self.shared.once(x, ("every", self.every), lambda: x[where.to(x.device)])

    def concerns(self, batch: Batch) -> bool:
        return self.every == 1 or bool((batch.indices % self.every == 0).any())

    def labelled(self, tables: Mapping[str, pd.DataFrame]) -> dict[str, pd.DataFrame]:
        """Tables that say whose weights they speak of, with a control and without."""
        return {name: table.assign(weights=RANDOM if self.setting.control else OWN) for name, table in tables.items()}

    def with_control(
        self, own: Mapping[str, pd.DataFrame], control: Mapping[str, pd.DataFrame]
    ) -> dict[str, pd.DataFrame]:
        """Rows below each other: column `weights` tells them apart."""
        import pandas as pd

        return {name: pd.concat([table, control[name]], ignore_index=True) for name, table in own.items()}

    @property
    def images(self) -> int:
        return int(self.sums["n"])

    def note(self) -> str:
        """The protocol in a few words."""
        variant = [] if self.variant == "exact" else [f"variant {self.variant}"]
        return "; ".join([*variant, *(["standardised per token"] if self.standardised else []), *self.remarks])

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

    def moments(self, key: str, n: float | None = None) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation over images (or over `n` observations)."""
        count = torch.tensor(float(max(1, self.images if n is None else n)), dtype=torch.float64)
        return mean_std(count, self.sums[key], self.sums[f"{key}.squared"])

    def heads_table(self, *keys: str, column: str = "metric") -> pd.DataFrame:
        """Tidy: block, head, metric, mean, std, n, from sums (blocks, heads)."""
        import pandas as pd

        frames = []
        for key in keys:
            mean, std = self.moments(key)
            block, head = (i.flatten() for i in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
            cells = {"mean": mean.flatten().numpy(), "std": std.flatten().numpy(), "n": self.images}
            frames.append(pd.DataFrame({"block": block.numpy(), "head": head.numpy(), column: key} | cells))
        return pd.concat(frames, ignore_index=True)

    def emit_images(self, table: str, batch: Batch, columns: Mapping[str, Any]) -> None:
        """One row per image of the batch; tensors (B,) become columns, anything else is the same in every row."""
        import pandas as pd

        cells = {key: c.detach().cpu().numpy() if isinstance(c, Tensor) else c for key, c in columns.items()}
        self.emit(table, pd.DataFrame({"image": batch.indices.numpy()} | cells))

    def emit_heads(self, table: str, batch: Batch, block: int, columns: Mapping[str, Any]) -> None:
        """One row per image and head, if asked for; tensors (B, H) become columns, anything else is in every row."""
        import pandas as pd

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
    if getattr(model.module, "rope", None) is not None:
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
