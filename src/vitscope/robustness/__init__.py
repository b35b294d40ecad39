"""Robustness: how does it break? Corruptions, out-of-distribution sets and attacks.

Names are loaded on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.robustness.attack_options import AttackOptions as AttackOptions
    from vitscope.robustness.attacking import attack as attack
    from vitscope.robustness.attacking import perturb as perturb
    from vitscope.robustness.attacks import Attack as Attack
    from vitscope.robustness.attacks import Victims as Victims
    from vitscope.robustness.attacks import create_attack as create_attack
    from vitscope.robustness.attacks import list_attacks as list_attacks
    from vitscope.robustness.attacks import register_attack as register_attack
    from vitscope.robustness.corruptions import corrupt as corrupt
    from vitscope.robustness.corruptions import list_corruptions as list_corruptions
    from vitscope.robustness.corruptions import register_corruption as register_corruption
    from vitscope.robustness.evaluating import evaluate as evaluate
    from vitscope.robustness.evaluation.evaluate_options import EvaluateOptions as EvaluateOptions
    from vitscope.robustness.sets import list_sets as list_sets
    from vitscope.robustness.sets import register_set as register_set
    from vitscope.robustness.threat import Threat as Threat

__getattr__, __dir__, __all__ = lazy(__name__, old={"Task": "Victims"})
