"""The whole lens in one request: which analyses, with which options in common.

analyze(model, data, lens_analyses(control="random", train="path/to/ImageNetS919", train_split="test"))
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitscope.errors import VitscopeError, suggest

NAMES = {
    "identifiability": "class_space.identifiability",
    "composition": "class_space.composition",
    "memories": "class_space.memories",
    "lens": "class_space.lens",
    "perturbation": "perturbation",
    "probes": "probes",
    "relevance": "relevance",
    "importance": "class_space.importance",
}
ONE_PASS = ("identifiability", "composition", "memories", "lens")  # together about 2.5 forward passes per image


def lens_analyses(
    parts: Sequence[str] | None = None,
    *,
    tokens: str = "all",
    head: str = "own",
    variant: str = "exact",
    control: str | None = None,
    train: str | None = None,
    train_split: str | None = None,
) -> dict[str, dict[str, Any]]:
    """{analysis: options} for `analyze`.

    parts: of NAMES; None takes those of one pass, the perturbations, and the probes where `train` is given. `tokens`
    chooses what the one-pass parts project and which positions are probed.
    """
    if parts is None:
        perturbation = ["perturbation"] if tokens != "class" else []
        parts = [*ONE_PASS, *perturbation, *(["probes"] if train is not None else [])]
    wrong = [part for part in parts if part not in NAMES]
    if wrong:
        raise VitscopeError(f"The lens has no part {wrong[0]!r}.{suggest(wrong[0], NAMES)} Known: {', '.join(NAMES)}.")
    common = {"head": head, "variant": variant, "control": control}
    found: dict[str, dict[str, Any]] = {"accuracy": {}}
    for part in dict.fromkeys(parts):
        options: dict[str, Any] = dict(common)
        if part == "importance":
            del options["control"]  # which memories matter in random weights says nothing
        if part in ONE_PASS or part == "perturbation":
            options["tokens"] = tokens
        elif part == "probes":
            options |= {"train": train, "train_split": train_split, "tokens": tokens}
        elif part == "relevance" and variant == "code":
            options["steps"] = 0
        found[NAMES[part]] = options
    return found
