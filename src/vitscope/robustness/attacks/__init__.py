"""Attacks by name. Each file is one attack, `registry` says what an attack is, docs/attacks.md how to add one."""

from vitscope.robustness.attacks.registry import Attack, Task, create_attack, list_attacks, register_attack

__all__ = ["Attack", "Task", "create_attack", "list_attacks", "register_attack"]
