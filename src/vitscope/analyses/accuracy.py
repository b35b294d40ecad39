"""How often is the model right, and does it know when it is?

Definitions. Rank of the true class: one plus the number of classes with a larger logit (among equal logits the smaller
class number comes first, as in `argmax`). Top-k: rank <= k. Loss: cross-entropy in nats. Confidence: the largest
softmax probability. Expected calibration error (Guo et al., "On calibration of modern neural networks", ICML 2017) over
15 bins of equal width on [0, 1], closed on the left, the last one closed on both sides:

    ECE = sum_b n_b / n * | share correct in b - mean confidence in b |

Images without a label (-1) are not counted. Softmax and sums are float64.
"""

from __future__ import annotations

import pandas as pd
import torch
from torch import Tensor

from vitscope.analyses.base import Analysis, Headline, register_analysis, zeros
from vitscope.analyses.conventions import BINS
from vitscope.data.batch import Batch
from vitscope.errors import DataError, UnsupportedModelError
from vitscope.models import Model
from vitscope.statistics.intervals import Z95, wilson
from vitscope.tasks.classification import true_rank


def confidence_bin(confidence: Tensor) -> Tensor:
    """Which of the 15 bins: floor(15 c), with c = 1 in the last."""
    return (confidence * BINS).long().clamp(max=BINS - 1)


@register_analysis("accuracy")
class Accuracy(Analysis):
    """Top-1, top-5, loss and calibration error, over all images and per class."""

    uses_labels = True

    def start(self, model: Model) -> None:
        if model.num_classes == 0:
            raise UnsupportedModelError(
                f"{model.name} has no classes (num_classes=0), so it cannot be right or wrong. "
                "Open it with weights that have a head; `vitscope analyze --only attention` needs none."
            )
        self.classes = model.num_classes
        per_class = {key: zeros(self.classes) for key in ("loss", "loss_squared")}
        counts = ("n", "top1", "top5", "predicted")
        self.sums = {key: zeros(self.classes, dtype=torch.int64) for key in counts} | per_class
        self.sums |= {"bin_n": zeros(BINS, dtype=torch.int64), "bin_correct": zeros(BINS, dtype=torch.int64)}
        self.sums |= {"bin_confidence": zeros(BINS)}

    def end_batch(self, batch: Batch) -> None:
        logits, labels, items = self.setting.task.judged(batch)  # (n, K), (n,), (n,)
        if (labels >= self.classes).any():
            raise DataError(
                f"The data has class number {int(labels.max())}, but the model has the {self.classes} classes "
                f"0 to {self.classes - 1}: the class folders do not match the head."
            )
        log_p = logits.log_softmax(1)
        confidence = log_p.max(1).values.exp()  # (n,)
        predicted, rank = logits.argmax(1), true_rank(logits, labels)
        loss = -log_p.gather(1, labels[:, None]).squeeze(1)
        correct, bins = rank == 1, confidence_bin(confidence)

        self._count("n", labels, torch.ones_like(rank))
        self._count("top1", labels, correct)
        self._count("top5", labels, rank <= 5)
        self._count("predicted", predicted, torch.ones_like(rank))
        self._count("loss", labels, loss)
        self._count("loss_squared", labels, loss.square())
        self._count("bin_n", bins, torch.ones_like(rank))
        self._count("bin_correct", bins, correct)
        self._count("bin_confidence", bins, confidence)
        rows = {
            "image": batch.indices[items].numpy(),
            "path": [batch.names[i] for i in items.tolist()],
            "label": labels.numpy(),
            "prediction": predicted.numpy(),
            "confidence": confidence.numpy(),
            "rank": rank.numpy(),
        }
        if len(labels):
            self.emit("predictions", pd.DataFrame(rows))

    def _count(self, key: str, where: Tensor, what: Tensor) -> None:
        acc = self.sums[key]
        acc.index_add_(0, where, what.to(acc.dtype))

    def tables(self) -> dict[str, pd.DataFrame]:
        n = int(self.sums["n"].sum())
        if n == 0:
            raise DataError("Accuracy needs labelled images, and none of those that were read has a label.")
        return {"accuracy": self._overall(n), "accuracy_per_class": self._per_class(), "calibration": self._bins()}

    def _overall(self, n: int) -> pd.DataFrame:
        s = self.sums
        rows = []
        for key in ("top1", "top5"):
            k = int(s[key].sum())
            low, high = wilson(k, n)
            rows.append((key, 100 * k / n, "%", 100 * low, 100 * high, "Wilson"))
        loss = float(s["loss"].sum()) / n
        half = Z95 * (max(float(s["loss_squared"].sum()) / n - loss**2, 0.0) / n) ** 0.5
        rows.append(("loss", loss, "nats", max(loss - half, 0.0), loss + half, "normal"))
        ece = float((s["bin_correct"] - s["bin_confidence"]).abs().sum()) / n
        # Given the confidences and the signs of the bins' gaps, ECE varies with the number right in each bin, which is
        # binomial. Agresti and Coull's share (k + 2) / (n + 4) keeps a bin that is all right or all wrong honest.
        share = (s["bin_correct"] + 2) / (s["bin_n"] + 4)
        half = Z95 * float((s["bin_n"] * share * (1 - share)).sum()) ** 0.5 / n
        rows.append(("ece", 100 * ece, "%", 100 * max(ece - half, 0.0), 100 * min(ece + half, 1.0), "binomial"))
        table = pd.DataFrame(rows, columns=["metric", "value", "unit", "low", "high", "interval"])
        return table.assign(n=n)

    def _per_class(self) -> pd.DataFrame:
        s = {key: self.sums[key].tolist() for key in ("n", "top1", "top5", "loss", "predicted")}
        names = self.setting.classes
        rows = []
        for c, n in enumerate(s["n"]):
            if n == 0:  # a class without images has no accuracy
                continue
            low, high = wilson(s["top1"][c], n)
            shares = (100 * s["top1"][c] / n, 100 * low, 100 * high, 100 * s["top5"][c] / n, s["loss"][c] / n)
            rows.append((c, names[c] if c < len(names) else str(c), n, s["predicted"][c], *shares))
        columns = ["label", "class_name", "n", "predicted", "top1", "top1_low", "top1_high", "top5", "loss"]
        return pd.DataFrame(rows, columns=columns)

    def _bins(self) -> pd.DataFrame:
        n, right, confidence = (self.sums[key].tolist() for key in ("bin_n", "bin_correct", "bin_confidence"))
        rows = []
        for b in range(BINS):
            if n[b]:
                low, high = wilson(right[b], n[b])
                shares = (confidence[b] / n[b], right[b] / n[b], low, high)
                rows.append((b, b / BINS, (b + 1) / BINS, n[b], *shares))
        columns = ["bin", "from", "to", "n", "confidence", "accuracy", "accuracy_low", "accuracy_high"]
        return pd.DataFrame(rows, columns=columns)

    def answers(self) -> tuple[int, int]:
        return int(self.sums["top1"].sum()), int(self.sums["n"].sum())

    def summary(self) -> dict[str, Headline]:
        figures = {}
        for row in self.tables()["accuracy"].to_dict("records"):
            note = f"95 % interval {row['low']:.3g} to {row['high']:.3g} ({row['interval']})"
            if row["metric"] == "ece":
                note += f", {BINS} equal-width bins"
            figures[row["metric"]] = Headline(float(row["value"]), row["unit"], int(row["n"]), note)
        return figures
