"""How a model's logits follow from the residual stream behind its last block, written as a linear map.

    logit_c = sum_r a_r (w_rc . norm(x_r) + b_rc)

over the tokens r that are read: the class token alone (a = 1), class and distillation token with a head each (a = 1/2),
all image tokens (a = 1/T), or of a text each token by itself. Models with `fc_norm` take the mean first: their x is one
vector, the mean of the image tokens. With the norm held at its own scale s (`frozen_norm`), a part p of x gives

    sum_r a_r <centre(gain * w_rc), p_r> / s_r

to the logit, and these shares, the norm's bias and the head's bias add up to it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from vitscope.architectures.families import block_row, blocks_of, family_of, final_norms, heads_of
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.frozen_norm import frozen
from vitscope.models.readout import pools

if TYPE_CHECKING:
    from vitscope.models.model import Model


class Readout:
    """The last step of a model: which tokens are read, and what a class takes from each."""

    def __init__(self, model: Model) -> None:
        if reason := why_not_linear(model):
            raise UnsupportedModelError(f"The logits of {model.name} cannot be split: {reason}.")
        module: Any = model.module
        self.layout, self.name, self.classes = model.layout, model.name, model.num_classes
        self.heads: list[Any] = list(heads_of(module))
        norms = {norm: frozen(norm) for norm in final_norms(module)}
        found = [norm for norm in norms.values() if norm is not None]
        if len(found) > 1:
            raise UnsupportedModelError(f"The logits of {model.name} cannot be split: two norms stand before its head.")
        self.norm = found[0] if found else None
        self.each = bool(model.row.text)  # every token has logits of its own
        self.mean = not self.each and pools(model)
        after_mean = next((n for norm, n in norms.items() if norm is getattr(module, "fc_norm", None)), None)
        self.mean_first = self.mean and (self.norm is None or after_mean is not None)

    @property
    def share(self) -> float:
        """a_r, the same for all tokens that are read."""
        if self.mean and not self.mean_first:
            return 1 / self.layout.image_tokens
        return 1 / len(self.heads)

    def tokens(self, x: Tensor) -> Tensor:
        """The tokens that count, (B, N, ...) -> (B, R, ...); of a text all."""
        if self.each:
            return x
        return x[:, self.layout.image] if self.mean else x[:, : len(self.heads)]

    def pooled(self, x: Tensor) -> Tensor:
        """Tokens that count (B, T, ...) -> the rows that are normalised (B, R, ...): their mean, or they themselves."""
        return x.mean(1, keepdim=True) if self.mean_first else x

    def directions(self, classes: Tensor, minus: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Classes (...) -> what a logit takes from rows (..., heads, C), but for 1 / s; biases of norm and head (...).

        There is one head, for all rows, or one for each. minus: of the difference to the logits of other classes.
        """
        weights = torch.stack([self._of(head.weight, classes, minus) for head in self.heads], -2)  # (..., heads, C)
        share = 1 / len(self.heads)
        head = [self._of(head.bias, classes, minus) for head in self.heads if head.bias is not None]
        head_bias = share * torch.stack(head).sum(0) if head else weights.new_zeros(classes.shape)
        if self.norm is None:
            return weights * self.share, torch.zeros_like(head_bias), head_bias
        norm_bias = torch.zeros_like(head_bias)
        if self.norm.bias is not None:
            norm_bias = share * (weights @ self.norm.bias).sum(-1)
        return self.norm.pulled_back(weights) * self.share, norm_bias, head_bias

    def _of(self, table: Tensor, classes: Tensor, minus: Tensor | None) -> Tensor:
        for numbers in (classes, *([] if minus is None else [minus])):
            wrong = numbers[(numbers < 0) | (numbers >= self.classes)]
            if len(wrong):
                raise VitscopeError(f"No class {int(wrong[0])}: {self.name} has the classes 0 to {self.classes - 1}.")
        found = table[classes.to(table.device)]
        return found if minus is None else found - table[minus.to(table.device)]

    def inverse_scale(self, x: Tensor) -> Tensor:
        """1 / s of rows (..., R, C) behind the last block -> (..., R)"""
        if self.norm is None:
            return x.new_ones(x.shape[:-1])
        return self.norm.inverse_scale(x).squeeze(-1)


def why_not_linear(model: Model) -> str | None:
    """Why the logits of a model are no sum over what its parts write; None where they are."""
    module: Any = model.module
    post = next((block for block in blocks_of(module) if block_row(block).summed), None)
    if post is not None:
        return (
            f"its blocks ({type(post).__name__}) normalise the sum of stream and branch, x = norm(x + branch), so what "
            "a block wrote is scaled anew by every later one, and the last stream is no sum over blocks"
        )
    if (reason := model.why_no_class_space()) is not None:
        return reason
    row = family_of(module)
    if row.inside or row.trunk:
        return (
            "it is an encoder with a head of its own behind it, which reads all tokens of a text, or each patch by "
            "itself: which of them a logit is read from is not known (`cache.decompose()` works)"
        )
    if (transform := row.transform) is not None:
        probe = next(module.parameters()).new_zeros(1, model.layout.width)
        if transform(module, probe) is not probe:
            return "its head has a layer of its own behind the final norm, which is not linear in the stream"
    if not all(isinstance(head, nn.Linear) for head in heads_of(module)):
        return "its head is no linear layer"
    return None
