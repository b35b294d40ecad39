"""Which values of a training's options make sense, alone and together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.errors import VitscopeError
from vitscope.models.preprocess_words import check_words
from vitscope.training.frozen import check_frozen

if TYPE_CHECKING:
    from vitscope.training.options import TrainOptions

_INFINITY = float("inf")
_RANGES: dict[tuple[float, float], tuple[str, ...]] = {  # the smallest and the largest value -> options
    (0, 1): ("smoothing", "erase", "mixup_prob", "mixup_switch_prob", "decay_rate", "ema", "distillation_share"),
    (1e-9, 1): ("share",),
    (0.01, 1): ("lr_noise_pct",),  # much smaller, or a much larger deviation, and drawing again would take its time
    (1e-9, 10): ("lr_noise_std",),
    (0, _INFINITY): (
        *("lr", "lr_batch", "weight_decay", "warmup_epochs", "warmup_steps", "warmup_lr", "min_lr", "patience_epochs"),
        *("mixup", "cutmix", "color_jitter", "checkpoint_steps", "workers", "refine_tokens"),
    ),
    (1e-12, _INFINITY): ("clip_grad",),
    (1e-9, _INFINITY): ("poly_power", "decay_epochs", "temperature"),
    (1, _INFINITY): (
        *("epochs", "batch_size", "accumulate", "repeats", "erase_count", "in_chans", "probe_every", "probe_images"),
    ),
    (2, _INFINITY): ("context",),
}


def check_ranges(o: TrainOptions) -> None:
    """Options that are out of their range; those that are ranges themselves, and one that is words."""
    for name, low, high in ((name, *ends) for ends, names in _RANGES.items() for name in names):
        value = getattr(o, name)
        if isinstance(value, int | float) and not low <= value <= high:
            expected = f"at least {low}" if high == _INFINITY else f"between {low} and {high}"
            raise VitscopeError(f"{name}={value} makes no training: expected {expected}.")
    noise, box = o.lr_noise, o.cutmix_minmax
    if len(noise) > 2 or not all(0 <= share <= 1 for share in noise) or list(noise) != sorted(noise):
        raise VitscopeError(f"lr_noise={_spaced(noise)}: expected one or two rising shares, as in 0.4 or 0.4 0.9.")
    if box and (len(box) != 2 or not all(0 <= side <= 1 for side in box) or list(box) != sorted(box)):
        raise VitscopeError(f"cutmix_minmax={_spaced(box)}: expected two rising shares of the side, as in 0.2 0.8.")
    if o.preprocess not in ("whole", "model"):
        check_words(o.preprocess)


def _spaced(values: tuple[float, ...]) -> str:
    return " ".join(map(str, values))


def check_together(o: TrainOptions) -> None:
    """Options that make sense alone and not together."""
    if o.repeats > 1 and not o.changes_pictures:
        raise VitscopeError(
            f"repeats={o.repeats} with augment={o.augment!r} would show the same picture again: choose augment='crop' "
            "(small pictures) or 'resized' (as ImageNet models learn)."
        )
    if o.randaugment and o.auto_augment:
        raise VitscopeError(
            f"randaugment={o.randaugment!r} and auto_augment={o.auto_augment!r} are two policies for one place: leave "
            "one out (--randaugment '' where a recipe has it)."
        )
    if o.augment_options and o.augment != "joint":
        raise VitscopeError("augment_options are those of augment='joint' (--augment joint), which label maps need.")
    if o.train_interpolation != "model" and o.augment != "resized":
        raise VitscopeError(
            f"train_interpolation={o.train_interpolation!r} is that of random crops: choose augment='resized', too."
        )
    if (o.mixup or o.cutmix or o.cutmix_minmax) and o.loss == "asymmetric":
        raise VitscopeError("The asymmetric loss takes no soft targets: choose another loss, or no mixup and cutmix.")
    if (o.distillation == "none") != (not o.teacher):
        raise VitscopeError("Distillation takes both: --distillation soft (or hard) and --teacher NAME-or-RUN.")
    if o.evaluate and o.weights is None:
        raise VitscopeError("Random weights are not worth evaluating: give --weights FILE, a run folder or pretrained.")
    if o.batch_size % o.accumulate:
        raise VitscopeError(
            f"A batch of {o.batch_size} images cannot be cut into accumulate={o.accumulate} equal pieces: choose a "
            f"divisor of {o.batch_size}, or batch_size={max(1, round(o.batch_size / o.accumulate)) * o.accumulate}."
        )
    if o.sharded and (o.ema or o.mixed_precision == "fp16"):
        raise VitscopeError("sharded=True goes neither with ema nor with fp16: leave them out, or take bf16.")
    if o.refine:
        check_frozen(o)
    if o.schedule == "plateau" and o.rate_set == "late":
        raise VitscopeError(
            "rate_set='late' follows DeiT's program, which gives its plateau no accuracy to wait for: leave it out."
        )
    if o.inat_category != "name" and o.data != "inaturalist":
        raise VitscopeError(f"inat_category={o.inat_category!r} goes with --data inaturalist, not with {o.data}.")
    if o.dtype == "float64" and (o.mixed_precision != "no" or o.probe):
        raise VitscopeError("dtype='float64' is for checking arithmetic: leave out mixed_precision and probes.")
