"""What a class's evidence is measured by, so that a gradient can say what brings a vector closer to the class.

With logits l = E ln(x) and the class c asked about, each (B,); larger is closer:

| objective | value | |
|---|---|---|
| cross_entropy | -CE(l, c) = log p_c | the formula of Vilas et al. 2023 |
| cross_entropy_code | -CE(softmax(l), c) | what their program computes: softmax twice |
| probability | p_c, p = softmax(l) | |
| logit | l_c | what their program computes where it says probability |
"""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from vitscope.analyses.naming import check_known

Objective = Literal["cross_entropy", "cross_entropy_code", "probability", "logit"]
OBJECTIVES: tuple[Objective, ...] = ("cross_entropy", "cross_entropy_code", "probability", "logit")


def check_objective(objective: str) -> None:
    check_known("objective", objective, OBJECTIVES)


def evidence(logits: Tensor, classes: Tensor, objective: str = "cross_entropy") -> Tensor:
    """Logits (B, K), classes (B,) -> (B,): how close each vector is to its class."""
    check_objective(objective)
    if objective == "cross_entropy":
        return -F.cross_entropy(logits, classes, reduction="none")
    if objective == "cross_entropy_code":
        return -F.cross_entropy(logits.softmax(-1), classes, reduction="none")
    if objective == "probability":
        return logits.softmax(-1).gather(1, classes[:, None])[:, 0]
    return logits.gather(1, classes[:, None])[:, 0]
