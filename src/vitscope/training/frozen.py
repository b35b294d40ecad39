"""What a training of heads on a frozen model (`refine`) cannot be told, checked without PyTorch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.errors import VitscopeError

if TYPE_CHECKING:
    from vitscope.training.options import TrainOptions

OF_MODEL = ("model", "model_options", "attention", "in_chans", "init", "preprocess")
OF_LEARNING = ("mixup", "cutmix", "cutmix_minmax", "distillation", "loss", "smoothing", "ema", "sharded", "evaluate")


def check_frozen(options: TrainOptions) -> None:
    """A frozen model is taken as it is, and its heads have a loss of their own."""
    if options.refine in ("refined", "linear"):
        raise VitscopeError(
            f"refine={options.refine} is a kind of lens: refine says which model is frozen, --refine RUN --refine-kind "
            f"{options.refine}."
        )
    plain = type(options)()
    for name in (*OF_MODEL, *OF_LEARNING):
        if getattr(options, name) != getattr(plain, name):
            why = "is taken as it is" if name in OF_MODEL else "stays as it is, and its heads learn by refine_loss"
            raise VitscopeError(
                f"{name} does not go with refine={options.refine}, which {why}: leave it out (a recipe may have "
                "brought it)."
            )
