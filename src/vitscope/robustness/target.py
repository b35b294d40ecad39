"""The attacked object, `pixels in [0, 1] -> normalise -> model`, and gradients by the pixels alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor, nn

from vitscope.analyses.one_pass import evaluating
from vitscope.errors import NumericalError, VitscopeError
from vitscope.models import Model
from vitscope.robustness.threat import Threat, channel_values
from vitscope.tasks import Classification, Task

INSIDE = "The model normalises inside: pixels in [0, 1] go in as they are."
WHERE = ("auto", "outside", "inside")
Loss = Callable[[Tensor, Tensor], Tensor]  # logits (B, K), labels (B,) -> (B,)


class Target(nn.Module):
    """A model that takes pixels, normalised here. Use it inside `attacking(model)`.

    A module, because the libraries behind some attacks insist on one; it holds no parameters of its own.
    """

    def __init__(self, model: Model, threat: Threat, task: Task | None = None) -> None:
        super().__init__()
        self.task = task or Classification()
        self.model, self.threat = [model], threat  # a list: the model's module must not become ours
        like = torch.empty(0, device=model.device)
        self._mean, self._std = channel_values(model.preprocess, like)
        self.training = False

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, H, W) in the threat's space -> logits (B, K). Gradients that come back are finite."""
        if images.requires_grad:
            images.register_hook(self._check_gradient)
        if self.threat.space == "pixels":
            images = images.sub(self._mean).div(self._std)  # the very operations of `data.transforms.normalise`
        return self.model[0](self.model[0].place(images))

    def _check_gradient(self, gradient: Tensor) -> None:
        """The sign of NaN is 0: an attack that follows it stands still, and the model looks robust."""
        if not gradient.isfinite().all():
            raise NumericalError(
                f"The gradient of {self.model[0].name} by the pixels is NaN or infinite: an attack that follows it "
                "would find nothing, and the model would look robust. Run it in float32, or look for an overflow."
            )

    def predict(self, images: Tensor) -> Tensor:
        """The answers (B,) int64, where they are classes."""
        return self.answer(images).argmax(1)

    def fooled(self, images: Tensor, labels: Tensor) -> Tensor:
        """(B,) bool: does the model answer these images otherwise than it should?"""
        return self.task.fooled(self.answer(images), labels)

    def answer(self, images: Tensor) -> Tensor:
        """Logits (B, K) without gradients. NaN among them is an error: argmax would call it an answer."""
        with torch.no_grad():
            logits = self(images)
        if not logits.isfinite().all():
            raise NumericalError(
                f"{self.model[0].name} answers an attacked picture with NaN or infinity: nobody can say whether it "
                "was fooled. Run it in float32, or look for an overflow."
            )
        return logits

    def gradient(self, images: Tensor, labels: Tensor, loss: Loss | None = None) -> tuple[Tensor, Tensor]:
        """(d loss / d images (B, C, H, W), logits (B, K)). Images do not see each other: the sum has each one's own."""
        with torch.enable_grad():
            x = images.detach().requires_grad_()
            logits = self(x)
            loss = loss or self.task.item_loss
            return torch.autograd.grad(loss(logits, labels).sum(), x)[0], logits.detach()


@contextmanager
def attacking(model: Model) -> Iterator[None]:
    """Eval mode and frozen weights inside the block: a backward pass then costs what the input's gradient costs.

    Afterwards every submodule has its mode and every parameter its `requires_grad` again; no `.grad` was touched.
    """
    flags = [(p, p.requires_grad) for p in model.module.parameters()]
    with evaluating(model.module):
        for parameter, _ in flags:
            parameter.requires_grad_(False)
        try:
            yield
        finally:
            for parameter, flag in flags:
                parameter.requires_grad_(flag)


def normalised_where(model: Model, where: str = "auto") -> tuple[Model, str | None]:
    """(the model as it is to be attacked, a remark). `where` its pictures are normalised: outside, inside, or auto.

    auto: as timm says (mean 0 and std 1: pixels go in as they are). Refused where the module looks as if it normalised
    while its recipe does so, too: one of the two must not.
    """
    if where not in WHERE:
        raise VitscopeError(f"normalise={where!r} is not known: expected {', '.join(WHERE)}.")
    mean, std = model.preprocess.mean, model.preprocess.std
    plain = all(m == 0 for m in mean) and all(s == 1 for s in std)
    suspect = normaliser(model.module)
    if where == "auto" and suspect is not None and not plain:
        raise VitscopeError(
            f"{model.name} seems to normalise inside (its part {suspect!r} has a mean and a std), and its recipe "
            f"normalises as well (mean {mean}). Say which holds: --normalise inside if pixels in [0, 1] go into the "
            "model as they are, --normalise outside if that part does something else."
        )
    if where == "inside" and not plain:
        preprocess = replace(model.preprocess, mean=(0.0,) * len(mean), std=(1.0,) * len(std))
        bare = Model(model.module, model.name, preprocess, model.source, model.notes, model.classes)
        return bare, INSIDE
    if where == "inside":
        return model, INSIDE
    return model, "Pixels in [0, 1] go into the model as they are: its recipe has mean 0 and std 1." if plain else None


def normaliser(module: nn.Module) -> str | None:
    """The name of a part that normalises pictures: it has a mean and a std of one number per colour."""
    for name, part in module.named_modules():
        mean, std = getattr(part, "mean", None), getattr(part, "std", None)
        if all(_per_colour(v) for v in (mean, std)):
            return name or type(part).__name__
    return None


def _per_colour(value: object) -> bool:
    if isinstance(value, Tensor):
        return value.numel() in (1, 3)
    return isinstance(value, tuple | list) and len(value) in (1, 3)
