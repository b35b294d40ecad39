"""vitscope looks inside transformers.

Names are loaded on first use, so that ``import vitscope`` costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

__version__ = "0.2.0"

if TYPE_CHECKING:
    from vitscope.analyses import Analysis as Analysis
    from vitscope.analyses import AnalyzeOptions as AnalyzeOptions
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
    from vitscope.explorer import explore as explore
    from vitscope.models import Model as Model
    from vitscope.models import list_models as list_models
    from vitscope.models import open_model as open_model
    from vitscope.models.generation import generate as generate
    from vitscope.repeat import rerun as rerun
    from vitscope.report import build_report as build_report
    from vitscope.report.notebook import panel as panel
    from vitscope.report.picture import Picture as Picture
    from vitscope.report.picture import picture as picture
    from vitscope.robustness import attack as attack
    from vitscope.robustness import evaluate as evaluate
    from vitscope.robustness import perturb as perturb
    from vitscope.runs import Run as Run
    from vitscope.sweeps import sweep as sweep
    from vitscope.training import TrainOptions as TrainOptions
    from vitscope.training import train as train

__getattr__, __dir__, __all__ = lazy(__name__)
__all__ += ["__version__"]
