"""vitscope looks inside vision transformers.

Names are loaded on first use, so that ``import vitscope`` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from vitscope.analyses import Analysis as Analysis
    from vitscope.analyses import analyze as analyze
    from vitscope.analyses import list_analyses as list_analyses
    from vitscope.analyses import register_analysis as register_analysis
    from vitscope.attention import convert as convert
    from vitscope.attention import list_attentions as list_attentions
    from vitscope.attention import register_attention as register_attention
    from vitscope.data import list_datasets as list_datasets
    from vitscope.data import load_data as load_data
    from vitscope.data import register_dataset as register_dataset
    from vitscope.demonstration import demo as demo
    from vitscope.errors import VitscopeError as VitscopeError
    from vitscope.models import Model as Model
    from vitscope.models import list_models as list_models
    from vitscope.models import open_model as open_model
    from vitscope.report import build_report as build_report
    from vitscope.robustness import attack as attack
    from vitscope.robustness import evaluate as evaluate
    from vitscope.runs import AnalyzeOptions as AnalyzeOptions
    from vitscope.runs import Run as Run
    from vitscope.runs import rerun as rerun
    from vitscope.sweeps import sweep as sweep
    from vitscope.training import TrainOptions as TrainOptions
    from vitscope.training import train as train

_HOME = {
    "open_model": "vitscope.models",
    "list_models": "vitscope.models",
    "Model": "vitscope.models",
    "analyze": "vitscope.analyses",
    "list_analyses": "vitscope.analyses",
    "register_analysis": "vitscope.analyses",
    "Analysis": "vitscope.analyses",
    "convert": "vitscope.attention",
    "list_attentions": "vitscope.attention",
    "register_attention": "vitscope.attention",
    "load_data": "vitscope.data",
    "list_datasets": "vitscope.data",
    "register_dataset": "vitscope.data",
    "train": "vitscope.training",
    "TrainOptions": "vitscope.training",
    "evaluate": "vitscope.robustness",
    "Run": "vitscope.runs",
    "AnalyzeOptions": "vitscope.runs",
    "rerun": "vitscope.runs",
    "sweep": "vitscope.sweeps",
    "build_report": "vitscope.report",
    "attack": "vitscope.robustness",
    "demo": "vitscope.demonstration",
    "VitscopeError": "vitscope.errors",
}

__all__ = ["__version__", *_HOME]


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'vitscope' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
