"""What is decided, and how far something moves it. The task says what is compared: a class, pixels, the next tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitscope.analyses.bundles import BundledAnalysis
from vitscope.analyses.causes.components import check_blocks
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError
from vitscope.models import Model
from vitscope.tasks import Task, task_of

VALUES = ("logit", "probability", "accuracy")  # of the true answer: its logit, its probability, is it the first?
FEW = 100  # rows of the sums where there are very many of them


class CausesAnalysis(BundledAnalysis):
    """What ablation and patching share: a model with a head, and data whose targets judge it."""

    default = False  # asked for by name: passes of their own
    controllable = False  # what decides in random weights says nothing
    tokens: str  # at which components are taken apart: groups of them, or each
    blocks: Sequence[int] | None  # all, if None

    def start(self, model: Model) -> None:
        if model.num_classes == 0:
            raise UnsupportedModelError(f"{model.name} has no head: there is no decision that could be changed.")
        self.model, self.layout = model, model.layout
        check_blocks(self.blocks, model)
        if self.tokens == "each" and model.row.text:
            raise UnsupportedModelError("Texts have no places that mean the same in all of them: use tokens='groups'.")

    def check_data(self, data: Data) -> None:
        task_of(data).check(self.model, data)

    def groups_of(self, batch: Batch) -> dict[str, Tensor]:
        """(B, N) bool by name, on the CPU. Pictures of another size than the model's own have their own grid."""
        layout = self.layout
        if not self.model.row.text and not layout.sequence:
            self.model.check_whole(batch.images)
            sides = zip(batch.images.shape[-2:], layout.patch)
            rows, columns = (-(-side // patch) for side, patch in sides)
            if (rows, columns) != layout.grid and self.tokens == "each":
                raise UnsuitableDataError(
                    f"A picture has {rows}x{columns} patches, another one {layout.grid[0]}x{layout.grid[1]}: places "
                    "mean the same only in pictures of one size. Take tokens='groups' and method='zero', or resize."
                )
            layout = replace(layout, grid=(rows, columns))
        return {name: inside.cpu() for name, inside in layout.groups(batch).items()}


def true_answers(task: Task, batch: Batch, outputs: Tensor) -> tuple[Tensor, Tensor]:
    """Sums over the answers of each item, VALUES (3, B), and how many answers it has (B,)."""
    logits, targets, items = task.judged(replace(batch, outputs=outputs))  # (n, K), (n,), (n,)
    true = logits.gather(1, targets[:, None])[:, 0]
    values = torch.stack([true, (true - logits.logsumexp(1)).exp(), (logits.argmax(1) == targets).double()])
    sums = torch.zeros(len(VALUES), len(batch), dtype=torch.float64).index_add_(1, items, values)
    return sums, torch.bincount(items, minlength=len(batch))


@dataclass(frozen=True)
class Contest:
    """Answers that are right in one version of some items and wrong in the other: true class against winner.

    `difference` is the logit of the first minus that of the second, the mean over the contested answers of an item:
    positive where the decision is the clean one.
    """

    true: Tensor  # (n,) of all answers that are compared; those that are not contested have weight 0
    other: Tensor  # (n,)
    items: Tensor  # (n,)
    weight: Tensor  # (n,) float64: 1 / contested answers of the item, or 0

    def difference(self, logits: Tensor, size: int) -> Tensor:
        """(n, K) -> (B,) float64, with gradients where the logits have them."""
        numbers = torch.arange(len(logits), device=logits.device)
        gap = logits[numbers, self.true.to(logits.device)] - logits[numbers, self.other.to(logits.device)]
        found = torch.zeros(size, dtype=torch.float64)
        return found.index_add(0, self.items, self.weight * gap.double().cpu())

    def decided(self, logits: Tensor, size: int) -> Tensor:
        """(n, K) -> (B,) float64: the share of the contested answers that are the true ones."""
        right = (logits.argmax(1).cpu() == self.true).double()
        return torch.zeros(size, dtype=torch.float64).index_add(0, self.items, self.weight * right)


def contest(clean: Tensor, corrupted: Tensor, targets: Tensor, items: Tensor, size: int) -> tuple[Contest, Tensor]:
    """Judged outputs of both versions (n, K) -> the contest, and (2, B) bool: is any answer right, is any contested?"""
    before, after = clean.argmax(1) == targets, corrupted.argmax(1) == targets
    contested = before & ~after

    def counts(which: Tensor) -> Tensor:
        return torch.zeros(size, dtype=torch.float64).index_add_(0, items, which.double())

    each = counts(contested)
    weight = contested / each[items].clamp(min=1)
    return Contest(targets, corrupted.argmax(1), items, weight), torch.stack([counts(before) > 0, each > 0])
