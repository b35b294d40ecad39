"""Where do the heads look? Entropy, distance and the mass on special tokens, per head and block.

Let a[i, j] be the attention of query i to key j, sum_j a[i, j] = 1, over all N tokens of one image; where an attention
is no softmax and its rows have other sums, they are divided by these. For each head, and separately for class-token,
register and image-token queries (the mean over the queries of that kind):

    entropy             - sum_j a[i, j] ln a[i, j], in nats; uniform attention has ln N
    entropy_normalised  the same divided by ln N, N counting all tokens
    mass_class          sum of a[i, j] over class tokens j (class and distillation)
    mass_register       sum over registers j
    mass_self           a[i, i]

and for image-token queries only, because the others have no place in the picture,

    distance            sum_ij a[i, j] d[i, j] / sum_ij a[i, j], both over image tokens i and j,

where d is the distance between patch centres in pixels of the model's input: how far, on average, the attention that
stays inside the picture travels (the mean attention distance of Dosovitskiy et al., ICLR 2021, with each unit of mass
counting the same, so that a query which gives nearly all to the class token does not speak for the picture).

Each is a number per image; the table has their mean and population standard deviation over images. `uniform` is what
attention that ignores the picture, 1 / N everywhere, would give. Texts have other kinds of tokens, and some are shorter
than others: `attention_text.py`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses import attention_text
from vitscope.analyses.attention_facts import NO_SHARES, attention_facts, check_points, gives_shares, shares_of
from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.architectures.layout import Layout
from vitscope.architectures.text_layout import TextLayout
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.moments import mean_std

UNITS = {
    "entropy": "nats",
    "entropy_normalised": "share",
    "distance": "px",
    "mass_class": "share",
    "mass_register": "share",
    "mass_self": "share",
}
PER_QUERY = ("entropy", "mass_class", "mass_register", "mass_self")


def query_kinds(layout: Layout) -> dict[str, slice]:
    """The kinds of tokens a model has, and where they are."""
    kinds = {"class": slice(0, layout.class_tokens)} if layout.class_tokens else {}  # with that of distillation
    return kinds | {kind: span for kind, span in layout.spans.items() if kind in ("register", "image")}


def token_distances(grid: tuple[int, int], patch: tuple[int, int]) -> Tensor:
    """Distances between patch centres in input pixels: (T, T) float32, T = rows * columns."""
    y = torch.arange(grid[0], dtype=torch.float64) * patch[0]
    x = torch.arange(grid[1], dtype=torch.float64) * patch[1]
    centres = torch.cartesian_prod(y, x).reshape(-1, 2)  # (T, 2), row by row
    return torch.cdist(centres, centres, compute_mode="donot_use_mm_for_euclid_dist").float()


def row_entropy(pattern: Tensor) -> Tensor:
    """-sum a ln a over the last dimension, with 0 ln 0 = 0: half the time of `torch.special.entr`, one temporary.

    Below the smallest normal number the logarithm is that of this number: it is multiplied by less than 1e-37.
    """
    smallest = torch.finfo(pattern.dtype).tiny
    return pattern.clamp_min(smallest).log_().mul_(pattern).sum(-1).neg_()


def head_statistics(pattern: Tensor, layout: Layout, distances: Tensor) -> dict[str, Tensor]:
    """Statistics per image and head of one block's pattern (B, H, N, N).

    `PER_QUERY` ones come as (B, H, K), K kinds of queries in the order of `query_kinds`; `distance_sum` and
    `distance_mass` as (B, H). Sums over keys are float32 (at most N terms), all further ones float64.
    """
    image, c = layout.image, layout.class_tokens
    rows = torch.stack(
        [
            row_entropy(pattern),
            pattern[..., :c].sum(-1),
            pattern[..., c : image.start].sum(-1),
            pattern.diagonal(dim1=-2, dim2=-1),
        ]
    ).double()  # (4, B, H, N)
    kinds = torch.stack([rows[..., where].mean(-1) for where in query_kinds(layout).values()], -1)  # (4, B, H, K)
    picture = pattern[..., image, image]  # (B, H, T, T)
    return dict(zip(PER_QUERY, kinds)) | {
        "distance_sum": (picture * distances).sum(-1).double().sum(-1),
        "distance_mass": picture.sum(-1).double().sum(-1),
    }


def attention_map(pattern: Tensor, layout: Layout) -> Tensor:
    """What the class token looks at, mean over heads: (B, H, N, N) -> (B, rows, columns).

    Without a class token: what the tokens look at on average.
    """
    looked = pattern[:, :, 0] if layout.class_tokens else pattern.mean(2)  # (B, H, N)
    return looked[..., layout.image].mean(1).reshape(-1, *layout.grid)


def uniform_value(metric: str, layout: Layout) -> float:
    """What 1 / N everywhere gives."""
    n, (rows, columns) = layout.tokens, layout.grid
    if metric == "distance":
        return float(token_distances((rows, columns), layout.patch).double().mean())
    return {
        "entropy": math.log(n),
        "entropy_normalised": 1.0,
        "mass_class": layout.class_tokens / n,
        "mass_register": layout.register_tokens / n,
        "mass_self": 1 / n,
    }[metric]


@register_analysis("attention")
class Attention(Analysis):
    """Entropy, mean distance and mass on class token, registers and itself, per head and block."""

    def needs(self, model: Model) -> Sequence[str]:
        return ["blocks.*.attn.hook_pattern"]

    def start(self, model: Model) -> None:
        self.layout = layout = model.layout
        if layout.tokens < 2:
            raise VitscopeError(f"{model.name} has a single token: its attention has nothing to choose from.")
        check_points(model, self.needs(model))
        if attention_facts(model).negative:
            raise UnsupportedModelError(f"{model.name} has negative attention weights: they are no shares of anything.")
        self.shares = gives_shares(model)
        self.remarks = [] if self.shares else [NO_SHARES]
        if isinstance(layout, TextLayout):
            self.sums = attention_text.start_sums(layout)
            self.remarks += [attention_text.CAUSAL] if layout.causal else []
            return
        self.distances = token_distances(layout.grid, layout.patch).to(model.device)
        shape = (layout.blocks, layout.heads, len(query_kinds(layout)))
        self.sums = {"n": zeros(1, dtype=torch.int64)}
        for metric in PER_QUERY:
            self.sums |= {metric: zeros(*shape), f"{metric}_squared": zeros(*shape)}
        self.sums |= {key: zeros(*shape[:2]) for key in ("distance", "distance_squared")}
        self.sums["distance_n"] = zeros(*shape[:2], dtype=torch.int64)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        (pattern,) = points.values()
        if isinstance(self.layout, TextLayout):
            self._update_texts(self.layout, block, pattern, batch)
            return
        if pattern.shape[-1] != self.layout.tokens:
            raise VitscopeError(
                f"Block {block} attends to {pattern.shape[-1]} tokens, but the model was opened for "
                f"{self.layout.tokens}. Open it with the img_size of the images."
            )
        pattern = pattern if self.shares else shares_of(pattern)
        found = head_statistics(pattern.float(), self.layout, self.distances)
        for metric in PER_QUERY:
            self._add_to_block(block, metric, found[metric])
        # A head may give an image no mass at all (underflow): then it has no distance, and that image is not counted.
        mass = found["distance_mass"]
        distance = torch.where(mass > 0, found["distance_sum"] / mass.where(mass > 0, torch.ones_like(mass)), 0.0)
        self._add_to_block(block, "distance", distance)
        self.sums["distance_n"][block] += (mass > 0).sum(0).cpu()
        self._emit_maps(block, pattern, batch)

    def _add_to_block(self, block: int, key: str, value: Tensor) -> None:
        self.sums[key][block] += value.sum(0).cpu()
        self.sums[f"{key}_squared"][block] += value.square().sum(0).cpu()

    def _emit_maps(self, block: int, pattern: Tensor, batch: Batch) -> None:
        shown = [i for i, image in enumerate(batch.indices.tolist()) if image in self.setting.gallery]
        if not shown:
            return
        maps = attention_map(pattern[shown].float(), self.layout).cpu()  # (b, rows, columns)
        image, row, col = (index.flatten() for index in torch.meshgrid(*map(torch.arange, maps.shape), indexing="ij"))
        place = {"image": batch.indices[shown][image].numpy(), "map": "attention", "block": block}
        cells = {"row": row.numpy(), "col": col.numpy(), "value": maps.flatten().numpy()}
        self.emit("maps_attention", pd.DataFrame(place | cells))

    def _update_texts(self, layout: TextLayout, block: int, pattern: Tensor, batch: Batch) -> None:
        valid = torch.stack(list(layout.groups(batch).values())).any(0).to(pattern.device)  # (B, N)
        if not self.shares:  # a padding query may give nothing to anyone; it is never looked at
            pattern = shares_of(pattern.masked_fill(~valid[:, None, :, None], 1.0))
        attention_text.add_texts(self.sums, layout, block, pattern, batch)
        shown = [i for i, text in enumerate(batch.indices.tolist()) if text in self.setting.gallery]
        for i, look in zip(shown, attention_text.looked_at(pattern[shown], layout, valid[shown])):
            place = {"image": int(batch.indices[i]), "map": "attention", "block": block, "row": 0}
            self.emit("maps_attention", pd.DataFrame(place | {"col": range(len(look)), "value": look.numpy()}))

    def end_batch(self, batch: Batch) -> None:
        self.add("n", torch.tensor([len(batch)]))

    def tables(self) -> dict[str, pd.DataFrame]:
        """`attention`: block, head, query, metric, mean, std, uniform, unit, n."""
        order = ["block", "head", "query", "metric"]
        if isinstance(self.layout, TextLayout):
            names = [*attention_text.KINDS, *attention_text.UNITS]
            table = attention_text.texts_table(self.sums, self.layout)
        else:
            names = [*query_kinds(self.layout), *UNITS]
            frames = [self._frame(metric) for metric in UNITS if self._exists(metric)]
            table = pd.concat(frames, ignore_index=True)
        rank = {name: i for i, name in enumerate(names)}
        table = table[table["n"] > 0]
        table = table.sort_values(order, key=lambda c: c.map(rank) if c.name in order[2:] else c, kind="stable")
        return {"attention": table.reset_index(drop=True)}

    def _exists(self, metric: str) -> bool:
        return {"mass_class": self.layout.class_tokens, "mass_register": self.layout.register_tokens}.get(metric, 1) > 0

    def _frame(self, metric: str) -> pd.DataFrame:
        kinds = list(query_kinds(self.layout))
        if metric == "distance":
            kinds = ["image"]
            n = self.sums["distance_n"][..., None]
            mean, std = mean_std(n, self.sums["distance"][..., None], self.sums["distance_squared"][..., None])
        else:
            key = metric.removesuffix("_normalised")
            scale = 1 / math.log(self.layout.tokens) if metric == "entropy_normalised" else 1.0
            n = self.sums["n"].expand(self.sums[key].shape)
            mean, std = (scale * value for value in mean_std(n, self.sums[key], self.sums[f"{key}_squared"]))
        block, head, kind = (index.flatten() for index in torch.meshgrid(*map(torch.arange, mean.shape), indexing="ij"))
        return pd.DataFrame(
            {
                "block": block.numpy(),
                "head": head.numpy(),
                "query": [kinds[k] for k in kind.tolist()],
                "metric": metric,
                "mean": mean.flatten().numpy(),
                "std": std.flatten().numpy(),
                "uniform": uniform_value(metric, self.layout),
                "unit": "tokens" if metric == "distance" and self.layout.sequence else UNITS[metric],
                "n": n.flatten().numpy(),
            }
        )

    def summary(self) -> dict[str, Headline]:
        table = self.tables()["attention"]
        n, figures = int(self.sums["n"]), {}
        query, special = ("text", "mass_first") if isinstance(self.layout, TextLayout) else ("image", "mass_class")
        for metric in ("entropy_normalised", "distance", special):
            rows = table[(table["metric"] == metric) & (table["query"] == query)]
            if len(rows):
                note = "; ".join([f"mean over heads and blocks, {query}-token queries", *self.remarks])
                figures[metric] = Headline(float(rows["mean"].mean()), str(rows["unit"].iloc[0]), n, note)
        return figures
