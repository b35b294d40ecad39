"""What could a linear readout know? Ridge probes for every position, block and point, beside the class projection.

The probes are trained on other images (`train`), in one pass that keeps sums only (`ridge.py`), and tested on the run's
images. The class projection of the same token is what the model's own head reads there: over all classes, and for a
fair comparison among the classes that the probes know.

Memory of the sums: 8 bytes * 3 points * blocks * positions * width * (width + classes that occur). ViT-Tiny, all 198
positions, 24 classes: 2.4 GB; choose positions with `tokens` (class,mean: 24 MB).
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import PurePosixPath
from typing import Any, ClassVar

import pandas as pd
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.analyses.class_space.analysis import POINTS, ClassSpaceAnalysis
from vitscope.analyses.class_space.positions import MEAN, at_positions, parse_positions, position_kind
from vitscope.analyses.class_space.projection import Heads
from vitscope.analyses.class_space.ridge import LinearProbe, Moments, add_batch, check_alphas, memory_bytes, solve
from vitscope.analyses.class_space.tokens import Selection
from vitscope.analyses.one_pass import measure
from vitscope.data.batch import Batch
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model
from vitscope.statistics.clusters import Mean
from vitscope.tasks import task_of

ALPHAS = (1.0, 10.0, 100.0, 1000.0)
FILE = "probes.safetensors"


def check_memory(needed: int, what: str) -> None:
    """Refuse before a pass begins what cannot fit into this machine."""
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not a POSIX system: let the allocation tell
        return
    if needed > 0.9 * there:
        raise VitscopeError(
            f"{what} need {needed / 1e9:.1f} GB, and this machine has {there / 1e9:.1f} GB. Choose fewer token "
            "positions, for example --set probes.tokens=class,mean."
        )


@register_analysis("probes.moments")
class ProbeMoments(Analysis):
    """The training pass of the probes: sums over the training images, and the solution at the end.

    classes: class numbers that occur. tokens, alphas: as for `probes`.
    """

    default = False
    uses_labels = True

    def __init__(self, classes: Sequence[int] = (), tokens: str = "all", alphas: Sequence[float] = ALPHAS) -> None:
        super().__init__()
        check_alphas(alphas)
        self.classes, self.tokens, self.alphas = list(classes), tokens, list(alphas)

    def needs(self, model: Model) -> list[str]:
        return [f"blocks.*.hook_{point}" for point in POINTS]

    def start(self, model: Model) -> None:
        self.layout = model.layout
        self.positions = parse_positions(self.tokens, model.layout)
        p, c, k, points = len(self.positions), self.layout.width, len(self.classes), (self.layout.blocks, len(POINTS))
        if k == 0:
            raise VitscopeError("probes.moments needs the class numbers that occur; `probes` fills them in.")
        check_memory(memory_bytes(p, c, k, points[0] * points[1]), "The sums of the probes")
        self.sums = {"second": zeros(*points, p, c, c), "classes": zeros(*points, p, k, c), "counts": zeros(k)}
        self.column = torch.full((max(self.classes) + 1,), -1)
        self.column[self.classes] = torch.arange(k)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        known, labels = self._columns(batch)
        for number, point in enumerate(POINTS):
            x = points[f"blocks.{block}.hook_{point}"]
            x = x if bool(known.all()) else x[known.to(x.device)]
            chosen = at_positions(x, self.positions, self.layout).cpu()
            add_batch(self.sums["second"][block, number], self.sums["classes"][block, number], chosen, labels)

    def end_batch(self, batch: Batch) -> None:
        self.sums["counts"] += torch.bincount(self._columns(batch)[1], minlength=len(self.classes))

    def _columns(self, batch: Batch) -> tuple[Tensor, Tensor]:
        known = batch.labels >= 0
        return known, self.column[batch.labels[known]]

    def probe(self, block: int, number: int) -> LinearProbe:
        """The solution at one block and point."""
        moments = Moments(self.sums["second"][block, number], self.sums["classes"][block, number], self.sums["counts"])
        return solve(moments, self.alphas)

    def probes(self) -> dict[str, Tensor]:
        """All weights, float32: `weight.<block>.<point>` (A, P, C, K) and `bias...` (A, P, K)."""
        found = {}
        for block in range(self.layout.blocks):
            for number, point in enumerate(POINTS):
                probe = self.probe(block, number)
                found[f"weight.{block}.{point}"], found[f"bias.{block}.{point}"] = (
                    probe.weight.float(),
                    probe.bias.float(),
                )
        return found

    def tables(self) -> dict[str, pd.DataFrame]:
        if self.setting.folder is not None:
            save_file(self.probes(), self.setting.folder / FILE)
        counts = self.sums["counts"].long().tolist()
        return {"probe_training": pd.DataFrame({"label": self.classes, "images": counts})}


@register_analysis("probes")
class LinearProbes(ClassSpaceAnalysis):
    """Accuracy of ridge probes per token position, block and point, beside the class projection.

    train, train_split: the training images, other ones than the run's. train_per_class: at most so many of each class.
    tokens: positions, such as 'class,mean' or 'all'. alphas: regularisers, all solved at once.
    """

    keys: ClassVar = {
        "probes": ["block", "point", "tokens", "alpha"],
        "probe_positions": ["block", "point", "token", "alpha"],
    }

    def __init__(
        self,
        train: str | None = None,
        train_split: str | None = None,
        train_per_class: int | None = None,
        tokens: str = "all",
        alphas: Sequence[float] = ALPHAS,
        head: Heads = "own",
        variant: str = "exact",
        control: str | None = None,
        batch_size: int = 64,
    ) -> None:
        super().__init__("all", head, variant, control)
        check_alphas(alphas)
        self.train, self.train_split, self.train_per_class = train, train_split, train_per_class
        self.tokens, self.alphas, self.batch_size = tokens, list(alphas), batch_size  # type: ignore[assignment]
        self.training: Any = None  # may be given instead of `train`
        self._weights: dict[str, Tensor] = {}

    def needs(self, model: Model) -> list[str]:
        return [f"blocks.*.hook_{point}" for point in POINTS]

    def select(self, model: Model) -> Selection:
        return Selection(model.layout)  # `tokens` names positions here

    def start_sums(self, model: Model) -> None:
        from vitscope.data import load_images

        self.model = model
        if self.training is None:
            if self.train is None:
                raise VitscopeError(
                    "Probes are trained on other images than they are tested on: name them, for example "
                    "--set probes.train=path/to/ImageNetS919 --set probes.train_split=test."
                )
            self.training = load_images(
                self.train, self.train_split, per_class=self.train_per_class, seed=self.seed, masks=False
            )
        self.training, doubt = task_of(self.training).match(model, self.training)
        if doubt and model.classes is not None:  # a head of unnamed classes: the same would be said of the data
            self.remarks = [f"of the images that probes are trained on: {doubt}"]
        self.training.check_head(model.num_classes, model.name)
        self.known = sorted({label for label in self.training.labels if label >= 0})
        if not self.known:
            raise DataError(f"None of the training images of {self.training.name} has a label.")
        self.positions = parse_positions(self.tokens, model.layout)
        self.kinds = [position_kind(p, model.layout)[0] for p in self.positions]
        self.groups = list(dict.fromkeys(self.kinds))
        width, classes = model.layout.width, len(self.known)
        check_memory(
            memory_bytes(len(self.positions), width, classes, model.layout.blocks * len(POINTS)), "The probes' sums"
        )
        values, shape = len(self.alphas) + 2, (model.layout.blocks, len(POINTS))
        self.start_clusters("hits", values, *shape)
        self.sums["positions"] = zeros(*shape, values, len(self.positions))
        self.sums |= {"n": zeros(1), "n_other": zeros(1)}
        groups = torch.tensor([[float(kind == group) for kind in self.kinds] for group in self.groups])
        self.members = groups.double()  # (G, P)
        self.column = torch.full((max(self.projector.classes, max(self.known) + 1),), -1)
        self.column[self.known] = torch.arange(classes)
        self._seen: dict[tuple[str, int], list[int]] = {}  # file name and class -> training images
        for i, (path, label) in enumerate(zip(self.training.paths, self.training.labels)):
            self._seen.setdefault((PurePosixPath(path).name, label), []).append(i)

    def begin(self) -> None:
        """Train."""
        assert self.training is not None
        moments = ProbeMoments(self.known, str(self.tokens), self.alphas)
        if self.setting.folder is None:
            measure(self.model, self.training.batches(self.model.preprocess, self.batch_size), [moments])
            self._weights = moments.probes()
            return

        from vitscope.analyses.engine import analyze_below

        name, how = "probes-control" if self.setting.control else "probes", (self.batch_size, self.seed)
        place = analyze_below(self.setting.folder, name, self.model, self.training, moments, *how)
        self._weights = load_file(place / FILE)

    def update(self, block: int, points: Mapping[str, Tensor], batch: Batch) -> None:
        known = batch.labels >= 0
        labels = batch.labels[known]
        column = self.column[labels]
        inside = column >= 0  # images of a class that the probes never saw cannot be right
        rows = known.nonzero().flatten()[inside]
        for number, point in enumerate(POINTS):
            x = points[f"blocks.{block}.hook_{point}"][rows.to(points[f"blocks.{block}.hook_{point}"].device)]
            hits = self._hits(block, point, x, batch.labels[rows], column[inside])  # (V, B, P)
            self.sums["positions"][block, number] += hits.sum(1)
            members = self.members.expand(len(rows), -1, -1)
            self.add_clusters("hits", (block, number), hits, members)

    def _hits(self, block: int, point: str, x: Tensor, labels: Tensor, column: Tensor) -> Tensor:
        """(A + 2, B, P): each alpha's probe, the projection on all classes, and among the probes' classes."""
        chosen = at_positions(x, self.positions, self.layout)  # (P, B, C)
        probe = LinearProbe(self._weights[f"weight.{block}.{point}"], self._weights[f"bias.{block}.{point}"])
        guesses = probe.scores(chosen.float().cpu()).argmax(-1)  # (A, P, B)
        found = [(guess == column).T for guess in guesses]
        logits = self._projection(x).cpu()  # (B, P, K)
        found.append(logits.argmax(-1) == labels[:, None])
        found.append(logits[..., self.known].argmax(-1) == column[:, None])
        return torch.stack(found).double()

    def _projection(self, x: Tensor) -> Tensor:
        numbers = [p for p in self.positions if p != MEAN]
        parts = []
        if numbers:
            parts.append(self.projector.logits(x)[:, numbers])
        if MEAN in self.positions:  # as an image token: through their head
            mean = x[:, self.layout.image].mean(1, keepdim=True)
            parts.append(self.projector.logits(mean, first_token=self.layout.image.start))
        return torch.cat(parts, 1)

    def end_batch(self, batch: Batch) -> None:
        self._check_other(batch)
        known = batch.labels >= 0
        inside = self.column[batch.labels[known]] >= 0
        self.sums["n"] += inside.sum()
        self.sums["n_other"] += (~inside).sum()
        super().end_batch(batch)

    def _check_other(self, batch: Batch) -> None:
        """Refuse a test image that the probes were trained on: the same file name, class and pixels."""
        from vitscope.data.transforms import build_transform

        assert self.training is not None
        transform = build_transform(self.model.preprocess)
        for path, label, image in zip(batch.paths, batch.labels.tolist(), batch.images.cpu()):
            for number in self._seen.get((PurePosixPath(path).name, label), []):
                if torch.equal(transform(self.training[number].image, None)[0], image):
                    raise DataError(
                        f"{path} is a training image of the probes ({self.training.paths[number]}). Test them on other "
                        "images."
                    )

    def tables(self) -> dict[str, pd.DataFrame]:
        n = float(self.sums["n"])
        if n == 0:
            raise DataError("None of the test images is of a class that the probes were trained on.")
        chance, rows, positions = 100 / len(self.known), [], []
        for block in range(self.layout.blocks):
            for number, point in enumerate(POINTS):
                key = {"block": block, "point": point}
                for g, group in enumerate(self.groups):
                    means = [self.mean_of("hits", (block, number), v, g, "share") for v in range(len(self.alphas) + 2)]
                    rows += [key | {"tokens": group} | row for row in self._rows(means, chance)]
                shares = 100 * self.sums["positions"][block, number] / n  # (V, P)
                for p, position in enumerate(self.positions):
                    kind, row, column = position_kind(position, self.layout)
                    where = {"token": position, "kind": kind, "row": row, "col": column}
                    own = {"projection": float(shares[-2, p]), "projection_among": float(shares[-1, p])}
                    for a, alpha in enumerate(self.alphas):
                        positions.append(key | where | {"alpha": alpha, "accuracy": float(shares[a, p])} | own)
        return {"probes": pd.DataFrame(rows), "probe_positions": pd.DataFrame(positions).assign(n_images=round(n))}

    def _rows(self, means: Sequence[Mean | None], chance: float) -> list[dict[str, object]]:
        assert self.training is not None
        rows: list[dict[str, object]] = []
        whole, among = means[-2], means[-1]
        assert whole is not None
        assert among is not None
        for alpha, mean in zip(self.alphas, means):
            assert mean is not None
            row: dict[str, object] = {"alpha": alpha, "accuracy": 100 * mean.value}
            row |= {"low": 100 * mean.low, "high": 100 * mean.high, "projection": 100 * whole.value}
            row |= {"projection_among": 100 * among.value, "projection_among_low": 100 * among.low}
            row |= {"projection_among_high": 100 * among.high, "chance": chance, "n_classes": len(self.known)}
            rows.append(
                row | {"n_train": len(self.training), "n_images": mean.images, "n_other": int(self.sums["n_other"])}
            )
        return rows

    def summary(self) -> dict[str, Headline]:
        table = self.tables()["probes"]
        last = table[(table["point"] == "resid_post") & (table["block"] == self.layout.blocks - 1)]
        return {
            f"{row['tokens']}": Headline(
                float(row["accuracy"]),
                "%",
                int(row["n_images"]),
                f"ridge probe, last block, alpha {row['alpha']:g}; projection {row['projection_among']:.1f} %",
            )
            for row in last[last["alpha"] == self.alphas[0]].to_dict("records")
        }
