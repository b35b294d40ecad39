"""What a training is told. The command line is made from these fields, and the resolved whole is saved in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitscope.errors import VitscopeError, suggest
from vitscope.options import check_fields
from vitscope.runs.shape import check_saved

Augment = Literal["none", "digits", "flip", "crop", "resized"]
Loss = Literal["cross_entropy", "binary", "asymmetric"]
Distillation = Literal["none", "soft", "hard"]
Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["cosine", "poly", "tanh", "constant"]

# These do not change results: a run may be continued with others. `out` is where the run lies, not what it is.
_FREE = (
    *("options.workers", "options.device", "device", "options.root", "data.train.root", "data.test.root"),
    *("options.track", "options.track_project", "options.track_entity", "options.track_name", "options.track_offline"),
)
_NOT_SAVED = ("out", "overwrite", "progress")
TRAINED: dict[str, Any] = {  # the configuration of a run, as it is saved
    "options": {}, "data?": {"name?": str, "train?": {}, "test?": {}}, "label?": str, "model?": {}, "preprocess?": {},
    "steps_per_epoch?": int, "device?": str, "modules?": [str],
}  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    """Every setting of a training run. Two runs with equal options (and as many processes) end with equal weights."""

    out: str | Path = "runs/train"  # the run folder; the same command again resumes it

    # what to learn from
    data: str = "mnist5k"  # any name or folder that load_data takes
    root: str | Path | None = None  # where a named dataset lies
    train_split: str = "train"  # what is learned from
    test_split: str = "test"  # what is held out; 'val' where the data has no 'test'
    share: float = 1.0  # of the training images: how much does less data cost?
    augment: Augment = "none"  # drawn anew for each image and epoch, from (seed, epoch, image)
    randaugment: str = ""  # timm's RandAugment on top, e.g. 'rand-m9-mstd0.5-inc1'; empty: none
    erase: float = 0.0  # probability of timm's random erasing (a box of noise), as DeiT has it
    repeats: int = 1  # repeated augmentation: so many versions of each image of an epoch, which sees fewer images
    mixup: float = 0.0  # alpha of timm's mixup; 0: none
    cutmix: float = 0.0  # alpha of timm's cutmix; with mixup, each batch draws which of the two
    strict: bool = False  # unreadable images and doubtful data stop the run instead of being left out
    mask_decoding: str | None = None  # how masks, which probes read, are stored: nonzero, half, alpha; None: 0, 1, 255

    # what learns
    model: str = "vit_tiny_patch16_224"  # any timm ViT, or 'small'
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for timm.create_model: img_size, drop_path_rate
    in_chans: int | None = None  # 1 for grey pictures, 3 for coloured ones; None: as the model has it
    weights: str | Path | None = None  # where to start: a file, a run folder, or 'pretrained' (timm's own)
    use_ema: bool = True  # averaged weights, where the file of `weights` or `teacher_weights` has plain ones, too
    preprocess: Literal["whole", "model"] = "whole"  # whole pictures around grey, or the crop and mean/std of the model
    attention: str = ""  # another attention in chosen blocks, e.g. 'rpc:layers=0'; empty leaves the model as it is
    label: str = ""  # what reports call it; the model's name if empty

    # how it learns
    epochs: int = 20  # passes over the training images
    batch_size: int = 64  # images per step over all processes together, so that more processes learn the same
    optimizer: str = "adamw"  # any name that timm.optim.create_optimizer_v2 knows
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # for create_optimizer_v2: momentum, betas
    lr: float = 1e-3  # peak learning rate
    lr_batch: int = 0  # lr is meant for batches of this size and scaled to batch_size; 0: lr as it is
    weight_decay: float = 0.05  # not applied to biases and norms, as in timm
    schedule: Schedule = "cosine"  # timm's; the rate is set at every step, as a function of its number
    warmup_epochs: float = 1.0  # linear from warmup_lr: without it AdamW's first steps can ruin a ViT
    warmup_lr: float = 1e-6  # where the warm-up begins
    min_lr: float = 1e-5  # where the schedule ends
    loss: Loss = "cross_entropy"  # what is minimised; the held-out loss is always the cross-entropy
    smoothing: float = 0.0  # label smoothing of the training loss (the held-out loss has none)
    clip_grad: float | None = 1.0  # largest norm of the gradient; None leaves it alone
    ema: float = 0.0  # decay of an average of the weights (timm's ModelEmaV3), evaluated beside them; 0: none
    distillation: Distillation = "none"  # also learn a teacher's probabilities (soft) or its answer (hard)
    teacher: str = ""  # any name or run folder that open_model takes; it must know the same classes
    teacher_weights: str | Path | None = None  # a file; None: timm's, or those of the run folder
    distillation_share: float = 0.5  # of the teacher in the loss
    temperature: float = 1.0  # of soft distillation
    seed: int = 0  # of everything: initial weights, order, augmentation, dropout
    mixed_precision: Precision = "no"  # bf16 or fp16 where the hardware has it
    dtype: Literal["float32", "float64"] = "float32"  # of the weights; float64 to check arithmetic, not to train

    # what is watched
    probe: tuple[str, ...] = ()  # analyses made during training, e.g. ('attention',)
    probe_set: Mapping[str, Any] = field(default_factory=dict)  # their options, e.g. kpca.reconstruction.variant=code
    probe_every: int = 1  # epochs between two of them; the untrained and the finished model are always probed
    probe_images: int = 500  # fixed images per split, spread over the classes
    probe_splits: tuple[str, ...] = ("train", "test")  # which of the two are probed

    # where its curves go besides the run folder
    track: tuple[str, ...] = ()  # Accelerate's trackers: wandb, tensorboard, ...; keys come from the environment
    track_project: str = "vitscope"  # the project there
    track_entity: str = ""  # the team there (wandb); empty: the user's own
    track_name: str = ""  # of the run there; empty: the name of the run folder
    track_offline: bool = False  # write locally, upload later (wandb)

    # how it runs
    evaluate: bool = False  # no training: the accuracy of `weights` on the held-out images
    checkpoint_steps: int = 0  # also save every so many steps; 0: at the end of every epoch only
    device: Literal["auto", "cpu"] = "auto"  # auto: a GPU where there is one
    sharded: bool = False  # FSDP: each process keeps a part of the weights; for models too large for one device
    workers: int = 0  # processes that read images; small pictures need none
    overwrite: bool = False  # replace a run of another configuration
    progress: bool = True  # a bar on stderr

    def __post_init__(self) -> None:
        for name in ("probe", "probe_splits", "track"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else value)
        check_fields(self)
        for name in ("probe", "probe_splits", "track"):  # 'accuracy,attention' is two words
            words = tuple(part.strip() for word in getattr(self, name) for part in word.split(",") if part.strip())
            object.__setattr__(self, name, words)
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                expected = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
                raise VitscopeError(f"{name}={value} makes no training: expected {expected}.")
        _check_together(self)
        for split in self.probe_splits:
            if split not in ("train", "test"):
                raise VitscopeError(f"probe_splits can hold 'train' and 'test', not {split!r}.")
        for name in ("model_options", "optimizer_options", "probe_set"):
            object.__setattr__(self, name, dict(getattr(self, name)))

    def check(self) -> None:
        """Refuse misspelt names and paths at once, without PyTorch: all that comes later takes seconds or fetches."""
        from vitscope.analyses.naming import check_names
        from vitscope.attention.description import check_names as check_attentions
        from vitscope.data.mask_decoding import find_decoding
        from vitscope.data.registry import check_place
        from vitscope.models.naming import check_model_name, check_weights_file, is_trained

        if self.probe:
            check_names(self.probe, self.probe_set)
        check_attentions(self.attention)
        if self.mask_decoding is not None:
            find_decoding(self.mask_decoding)
        check_place(self.data, self.root)
        for weights in (self.weights, self.teacher_weights):
            if weights is not None and weights not in ("pretrained", "random") and not is_trained(weights):
                check_weights_file(weights)
        for name in (self.model, self.teacher):
            if name:
                check_model_name(name)

    @property
    def look_size(self) -> int:
        """Images per forward pass without gradients: what can be trained on can be looked at."""
        return min(self.batch_size, 256)

    @property
    def peak_lr(self) -> float:
        """The learning rate after the warm-up, with the linear scaling rule where `lr_batch` asks for it."""
        return self.lr * self.batch_size / self.lr_batch if self.lr_batch else self.lr

    def to_config(self) -> dict[str, Any]:
        """What config.yaml keeps: everything but where the run lies and how it is shown."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_SAVED}
        if self.mask_decoding is None:  # as absent as in older runs, which are then still the same
            del values["mask_decoding"]
        if self.use_ema:
            del values["use_ema"]
        return {k: list(v) if isinstance(v, tuple) else str(v) if isinstance(v, Path) else v for k, v in values.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changes: Any) -> TrainOptions:
        """The inverse, with `changes`. A name that is no option is an error that suggests the nearest.

        `config` may be the whole configuration of a run, which has more than the options.
        """
        if "options" in config:
            check_saved(config, TRAINED)
            config = config["options"]
        values = {**config, **changes}
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise VitscopeError(f"Training has no option {name!r}.{suggest(name, known)}")
        return cls(**values)


def _check_together(o: TrainOptions) -> None:
    """Options that make sense alone and not together."""
    if o.repeats > 1 and o.augment not in ("crop", "resized") and not (o.randaugment or o.erase):
        raise VitscopeError(
            f"repeats={o.repeats} with augment={o.augment!r} would show the same picture again: choose augment='crop' "
            "(small pictures) or 'resized' (as ImageNet models learn)."
        )
    if (o.mixup or o.cutmix) and o.loss == "asymmetric":
        raise VitscopeError("The asymmetric loss takes no soft targets: choose another loss, or no mixup and cutmix.")
    if (o.distillation == "none") != (not o.teacher):
        raise VitscopeError("Distillation takes both: --distillation soft (or hard) and --teacher NAME-or-RUN.")
    if o.evaluate and o.weights is None:
        raise VitscopeError("Random weights are not worth evaluating: give --weights FILE, a run folder or pretrained.")
    if o.sharded and (o.ema or o.mixed_precision == "fp16"):
        raise VitscopeError("sharded=True goes neither with ema nor with fp16: leave them out, or take bf16.")
    if o.dtype == "float64" and (o.mixed_precision != "no" or o.probe):
        raise VitscopeError("dtype='float64' is for checking arithmetic: leave out mixed_precision and probes.")


def free_keys() -> tuple[str, ...]:
    """Keys of a training's config.yaml that may differ when it is resumed."""
    return _FREE


_INFINITY = float("inf")
_RANGES: tuple[tuple[str, float, float], ...] = (
    ("share", 1e-9, 1),
    ("epochs", 1, _INFINITY),
    ("batch_size", 1, _INFINITY),
    ("lr", 0, _INFINITY),
    ("weight_decay", 0, _INFINITY),
    ("warmup_epochs", 0, _INFINITY),
    ("warmup_lr", 0, _INFINITY),
    ("min_lr", 0, _INFINITY),
    ("smoothing", 0, 1),
    ("erase", 0, 1),
    ("repeats", 1, _INFINITY),
    ("mixup", 0, _INFINITY),
    ("cutmix", 0, _INFINITY),
    ("in_chans", 1, _INFINITY),
    ("lr_batch", 0, _INFINITY),
    ("ema", 0, 1),
    ("distillation_share", 0, 1),
    ("temperature", 1e-9, _INFINITY),
    ("clip_grad", 1e-12, _INFINITY),
    ("probe_every", 1, _INFINITY),
    ("probe_images", 1, _INFINITY),
    ("checkpoint_steps", 0, _INFINITY),
    ("workers", 0, _INFINITY),
)
