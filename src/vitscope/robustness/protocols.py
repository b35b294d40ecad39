"""`--protocol published`: the robustness evaluation of the RPC-Attention paper, as its released code runs it.

It differs from how robustness is measured elsewhere in these ways, each of which changes the figures:

| | published code | vitscope and RobustBench |
|---|---|---|
| epsilon is measured on | tensors after (x - mean) / std: 1/255 there is std / 255 in pixels | pixels in [0, 1] |
| the attacked image | may leave [0, 1]: it need not be a picture | is clipped |
| the attack leads away from | the model's own answer, so that a wrong answer may become right | the true label |
| PGD | 20 steps of 0.15 epsilon, random start | 20 steps of 2.5 / 20 epsilon, random start |
| SPSA | 10 steps of 128 pairs, random start, gradients at twice the image | 20 of 32, from the image, where it is |
| sparse L1 | 20 steps of 0.1 epsilon, rescaled to the ball | the same, projected on the ball |

It is offered to compare with published figures, and every row that it makes says so. Options that a user gives win over
those below.
"""

from __future__ import annotations

from typing import Any

from vitscope.errors import VitscopeError

PROTOCOLS = ("pixels", "published")
OPTIONS: dict[str, dict[str, Any]] = {
    "pgd": {"steps": 20, "step": 0.15, "random_start": True},
    "spsa": {"steps": 10, "samples": 128, "random_start": True, "variant": "code"},
    "sparse-l1": {"steps": 20, "step": 0.1, "sparsity": 0.99, "variant": "code"},
}


def published_options(attack: str, given: dict[str, Any]) -> dict[str, Any]:
    """The options of an attack under this protocol."""
    if given.get("stop"):
        raise VitscopeError(
            f"{attack}: the published code takes every step of every image; with stop=true an image keeps the first "
            "answer that differs, which is another figure. Leave it out."
        )
    return {**OPTIONS.get(attack, {}), **given}
