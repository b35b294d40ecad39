"""Attacks by name. Each file is one attack, `registry` says what an attack is, docs/attacks.md how to add one."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.robustness.attacks.registry import Attack as Attack
    from vitscope.robustness.attacks.registry import Victims as Victims
    from vitscope.robustness.attacks.registry import create_attack as create_attack
    from vitscope.robustness.attacks.registry import list_attacks as list_attacks
    from vitscope.robustness.attacks.registry import register_attack as register_attack

__getattr__, __dir__, __all__ = lazy(__name__, old={"Task": "Victims"})
