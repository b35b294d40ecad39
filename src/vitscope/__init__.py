"""vitscope looks inside vision transformers.

Names are loaded on first use, so that ``import vitscope`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    "open_model": "vitscope.models",
    "list_models": "vitscope.models",
    "Model": "vitscope.models",
    "analyze": "vitscope.analyses",
    "list_analyses": "vitscope.analyses",
    "register_analysis": "vitscope.analyses",
    "Analysis": "vitscope.analyses",
    "load_data": "vitscope.data",
    "list_datasets": "vitscope.data",
    "register_dataset": "vitscope.data",
    "train": "vitscope.training",
    "TrainOptions": "vitscope.training",
    "Run": "vitscope.runs",
    "build_report": "vitscope.report",
    "demo": "vitscope.demo",
    "VitscopeError": "vitscope.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
