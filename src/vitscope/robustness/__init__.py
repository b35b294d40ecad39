"""Robustness: how does it break? Corruptions, out-of-distribution sets and attacks.

Names are loaded on first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscope.robustness.attacking import attack as attack
    from vitscope.robustness.attacking import perturb as perturb
    from vitscope.robustness.attacks import Attack as Attack
    from vitscope.robustness.attacks import Task as Task
    from vitscope.robustness.attacks import create_attack as create_attack
    from vitscope.robustness.attacks import list_attacks as list_attacks
    from vitscope.robustness.attacks import register_attack as register_attack
    from vitscope.robustness.corruptions import corrupt as corrupt
    from vitscope.robustness.corruptions import list_corruptions as list_corruptions
    from vitscope.robustness.corruptions import register_corruption as register_corruption
    from vitscope.robustness.evaluating import evaluate as evaluate
    from vitscope.robustness.sets import list_sets as list_sets
    from vitscope.robustness.sets import register_set as register_set
    from vitscope.robustness.threat import Threat as Threat

_HOME = {
    "attack": "vitscope.robustness.attacking",
    "perturb": "vitscope.robustness.attacking",
    "Attack": "vitscope.robustness.attacks",
    "Task": "vitscope.robustness.attacks",
    "create_attack": "vitscope.robustness.attacks",
    "list_attacks": "vitscope.robustness.attacks",
    "register_attack": "vitscope.robustness.attacks",
    "Threat": "vitscope.robustness.threat",
    "evaluate": "vitscope.robustness.evaluating",
    "corrupt": "vitscope.robustness.corruptions",
    "list_corruptions": "vitscope.robustness.corruptions",
    "register_corruption": "vitscope.robustness.corruptions",
    "list_sets": "vitscope.robustness.sets",
    "register_set": "vitscope.robustness.sets",
}

__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitscope.robustness' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
