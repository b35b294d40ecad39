"""Learnt lenses trained in the one loop: the model is frozen, what learns are the heads that read its blocks.

What is minimised, averaged over blocks (and tokens):

* `refined` as published (Naseer et al. 2022): the cross-entropy of each block's answer with the label;
* `linear` as published (the tuned lens, Belrose et al. 2023): KL(last || block), how far the reading of a token lies
  from what the last block's same token says. It needs no labels.

`refine_loss` chooses the other one. Loss and accuracy on held-out data are those of the image's reading, averaged over
the blocks that learn.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitscope.data import Batch, Data
from vitscope.errors import DataError, VitscopeError
from vitscope.models import Model, open_model
from vitscope.models.learnt_lens import attach, read_learnt, read_whole
from vitscope.models.separation import sizes
from vitscope.registry import outside_modules
from vitscope.tasks import Task, task_of
from vitscope.tasks.classification import some
from vitscope.training.losses import wide
from vitscope.training.options import TrainOptions

PUBLISHED = {"refined": "cross_entropy", "linear": "kl"}
Readings = tuple[Tensor, Tensor, Tensor]  # of n tokens (B, H, n, K), of the last block's (B, n, K), of images (B, H, K)


def open_frozen(options: TrainOptions, data: Data) -> Model:
    """The model of `options.refine` with heads that can learn; nothing else of it can."""
    weights = None if str(options.weights) == "pretrained" else options.weights
    model = open_model(options.refine, weights, use_ema=options.use_ema, seed=options.seed)
    task = task_of(data)
    if model.row.text or not task.one_class:
        raise VitscopeError(
            f"refine={options.refine}: learnt lenses are trained on pictures with classes. A language model's blocks "
            "are read by the plain lens: vitscope analyze RUN --only vocabulary."
        )
    if reason := model.why_no_class_space():
        raise VitscopeError(f"refine={options.refine}: it cannot be read in class space: {reason}.")
    task.check(model, data)
    if model.classes and list(model.classes) != list(data.classes):
        raise DataError(
            f"{options.refine} learned the classes {some(model.classes)}, the data has {some(data.classes)}: a lens "
            "learns from the same classes in the same order."
        )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        heads = attach(model.module, options.refine_kind)
    model.module.requires_grad_(False)
    heads.requires_grad_(True)
    count = sum(p.numel() for p in heads.parameters())
    model.notes.append(
        f"The weights of {options.refine} are frozen: what learns are the {len(heads)} {options.refine_kind} heads "
        f"that read its blocks ({count:,} weights). Loss and accuracy are means over these blocks."
    )
    built = {**model.source.get("options", {}), "num_classes": model.num_classes}
    if model.source["name"] == "small" and "run" not in model.source:
        block: Any = model.blocks[0]  # a file of the separation study tells sizes by its weights, and has its own norms
        built = {**sizes(model.module.state_dict()), "norm_eps": block.norm1.eps, **built}
    source = {**model.source, "options": built}
    label = options.label or f"{model.name} ({options.refine_kind} lens)"
    return Model(model.module, label, model.preprocess, source, model.notes, model.classes)


def describe_frozen(model: Model) -> dict[str, Any]:
    """model.json of a model that was opened and not built by the options; its weights bring the heads."""
    name, attention = str(model.source["name"]), model.source.get("attention") or None
    return {
        "name": name,
        "kwargs": model.source["options"],
        "attention": attention,
        **({"modules": modules} if (modules := outside_modules([attention, name])) else {}),
        "preprocess": model.preprocess.to_dict(),
        "classes": model.classes,
    }


class Learner(nn.Module):
    """What learns, as the loop calls it: images -> `Readings`. The frozen model is no part of it, and stays."""

    def __init__(self, model: Model, options: TrainOptions) -> None:
        super().__init__()
        self.kind, self.drawn = options.refine_kind, options.refine_tokens
        self.heads = attach(model.module, options.refine_kind)
        self.model = model

    def forward(self, images: Tensor) -> Readings:
        found: list[Tensor] = []
        with torch.no_grad():
            names = "blocks.*.hook_resid_post"
            final = self.model.stream(images, names, lambda _, points: found.extend(points.values()))
        if self.kind == "refined":
            whole = self._whole(found)
            return whole[:, :, None], final[:, None], whole
        with torch.no_grad():
            whole = self._whole(found)
            tokens = self._tokens(found[0].shape[1])
            last = self.model.to_class_space(found[-1][:, tokens])
        read = [read_learnt(self.model, x[:, tokens], "linear", block) for block, x in enumerate(found[:-1])]
        return torch.stack(read, 1), last, whole

    @torch.no_grad()
    def answers(self, images: Tensor) -> Tensor:
        """What the blocks that learn say of images: (B, H, K)."""
        found: list[Tensor] = []
        self.model.stream(images, "blocks.*.hook_resid_post", lambda _, points: found.extend(points.values()))
        return self._whole(found)

    def _whole(self, found: list[Tensor]) -> Tensor:
        return torch.stack([read_whole(self.model, x, self.kind, block) for block, x in enumerate(found[:-1])], 1)

    def _tokens(self, count: int) -> Tensor:
        """Class tokens and a few others, drawn anew for every step."""
        first = self.model.layout.class_tokens
        if not 0 < self.drawn < count:
            return torch.arange(count)
        others = first + torch.randperm(count - first)[: max(self.drawn - first, 1)]
        return torch.cat([torch.arange(first), others.sort().values])


def refinement_loss(readings: Readings, labels: Tensor, loss: str) -> Tensor:
    """Summed over images, averaged over heads and tokens."""
    read, last, _ = readings
    log_p = F.log_softmax(wide(read), -1)  # (B, H, n, K)
    if loss == "kl":
        target = F.log_softmax(wide(last), -1)[:, None]  # (B, 1, n, K)
        return (target.exp() * (target - log_p)).sum(-1).mean((1, 2)).sum()
    true = labels[:, None, None, None].expand(*log_p.shape[:3], 1)
    return -log_p.gather(-1, true).mean((1, 2, 3)).sum()


def tally_heads(learner: Learner, task: Task, batch: Batch) -> list[float]:
    """[cross-entropy, right answers, answers] of a batch, averaged over the heads."""
    answers = learner.answers(learner.model.place(batch.inputs))  # (B, H, K)
    sums = [task.tally(answers[:, head], batch.targets) for head in range(answers.shape[1])]
    return [sum(values) / len(sums) for values in zip(*sums)]
