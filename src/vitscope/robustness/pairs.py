"""Attacked and corrupted images as partners of clean ones, for `causes.patching`."""

from __future__ import annotations

from typing import ClassVar

import torch

from vitscope.analyses.base import Setting
from vitscope.analyses.causes.pair_words import PairWords
from vitscope.analyses.causes.pairs import Pairs, Partners, register_pairs
from vitscope.data import Data
from vitscope.data.batch import Batch
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import Model
from vitscope.robustness.attacks import Victims, create_attack
from vitscope.robustness.corruptions import corrupt, image_seed
from vitscope.robustness.corruptions.names import parse_corruptions, parse_severities
from vitscope.robustness.segmentation.moving import MOVES
from vitscope.robustness.target import Target, attacking, normalised_where
from vitscope.robustness.threat import channel_values, make_threat, normalised, pixels_of
from vitscope.tasks import task_of


class _ChangedPictures(Pairs):
    plain: ClassVar[bool] = False

    def start(self, model: Model, setting: Setting) -> None:
        super().start(model, setting)
        if model.row.text:
            raise UnsupportedModelError(
                f"Pairs {self.words.text!r} change pictures, and {model.name} takes texts: try 'swap'."
            )


@register_pairs("attack")
class Attacked(_ChangedPictures):
    """The image after an attack that leads away from its true class, in pixels of [0, 1]; options are its defaults."""

    def __init__(self, words: PairWords) -> None:
        super().__init__(words)
        self.attack = create_attack(words.what)
        self.threat = make_threat(words.level, self.attack.norms[0])
        if len(self.threat.epsilons) != 1:
            raise VitscopeError(f"Pairs {words.text!r}: one budget per kind of pairs, such as {words.what}@1/255.")
        self.attack.check(self.threat)

    def start(self, model: Model, setting: Setting) -> None:
        super().start(model, setting)
        normalised_where(model)
        self.target = Target(model, self.threat, setting.task)

    def check_data(self, data: Data) -> None:
        if not task_of(data).one_class:
            self.attack.check_pixels()

    def partners(self, batch: Batch) -> Partners:
        known = self.setting.task.counted(batch.targets).reshape(len(batch), -1).any(1)
        images = pixels_of(batch.images[known].to(self.model.device), self.model.preprocess)
        self.threat.check_clean(images)
        labels = batch.targets[known].to(images.device)
        victims = Victims(images, labels, batch.indices[known], self.threat, self.setting.seed)
        eps = self.threat.epsilons[0].value
        with attacking(self.model):
            found = self.attack.perturb(self.target, victims, eps)
            if self.attack.minimal:
                found = self.threat.project(found, images, eps)
        self.threat.verify(found, images, eps, self.attack.name)
        inputs = batch.images.clone()
        inputs[known] = normalised(found.detach(), self.model.preprocess).to(inputs)
        return Partners(inputs, known)


@register_pairs("corrupt")
class Corrupted(_ChangedPictures):
    """The image under a corruption, bit for bit that of `vitscope evaluate --corrupt`."""

    def __init__(self, words: PairWords) -> None:
        super().__init__(words)
        names, severities = parse_corruptions(words.what), parse_severities(words.level)
        if len(names) != 1 or len(severities) != 1:
            raise VitscopeError(f"Pairs {words.text!r}: one corruption and one severity, such as corrupt:fog@3.")
        self.corruption, self.severity = names[0], severities[0]

    def check_data(self, data: Data) -> None:
        if self.corruption in MOVES and not task_of(data).one_class:
            raise UnsuitableDataError(
                f"Pairs {self.words.text!r} move pixels, so that both sides have other classes at the same place: take "
                "a corruption that leaves them where they are, such as corrupt:fog@3."
            )

    def partners(self, batch: Batch) -> Partners:
        name, seed = self.corruption, self.setting.seed
        pixels = pixels_of(batch.images, self.model.preprocess).mul(255).round().clamp(0, 255).to(torch.uint8)
        seeds = [image_seed(seed, path, name, self.severity) for path in batch.paths]
        mean, std = channel_values(self.model.preprocess, batch.images)
        images = corrupt(pixels, name, self.severity, seeds).to(mean).div_(255).sub_(mean).div_(std)
        return Partners(images, torch.ones(len(batch), dtype=torch.bool))
