"""What an attribution splits, in words. Pages are drawn without torch, so they stand apart from the rest."""

from __future__ import annotations

NONE, BEST = "none", "best"  # of `minus`
_TARGETS = {"label": "the true class", "prediction": "the class that the model says"}


def in_words(target: int | str, minus: int | str) -> str:
    """'the logit of the true class minus that of the best other'"""
    logit = f"the logit of {_TARGETS.get(str(target), f'class {target}')}"
    if minus == NONE:
        return logit
    return f"{logit} minus that of {'the best other' if minus == BEST else f'class {minus}'}"
