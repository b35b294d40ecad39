"""What a training is told. The command line is made from these fields, and the resolved whole is saved in the run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, get_args

from vitscope.errors import VitscopeError, suggest

Augment = Literal["none", "digits", "flip"]
Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["cosine", "poly", "tanh", "constant"]

# These do not change results: a run may be continued with others. `out` is where the run lies, not what it is.
_FREE = ("options.workers", "options.device", "device", "options.root", "data.train.root", "data.test.root")
_NOT_SAVED = ("out", "overwrite", "progress")


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
    strict: bool = False  # an unreadable image stops the run instead of being left out

    # what learns
    model: str = "vit_tiny_patch16_224"  # any timm ViT
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for timm.create_model: img_size, drop_path_rate
    attention: str = ""  # another attention in chosen blocks, e.g. 'rpc:layers=0'; empty leaves the model as it is
    label: str = ""  # what reports call it; the model's name if empty

    # how it learns
    epochs: int = 20  # passes over the training images
    batch_size: int = 64  # images per step over all processes together, so that more processes learn the same
    optimizer: str = "adamw"  # any name that timm.optim.create_optimizer_v2 knows
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # for create_optimizer_v2: momentum, betas
    lr: float = 1e-3  # peak learning rate
    weight_decay: float = 0.05  # not applied to biases and norms, as in timm
    schedule: Schedule = "cosine"  # timm's; the rate is set at every step, as a function of its number
    warmup_epochs: float = 1.0  # linear from warmup_lr: without it AdamW's first steps can ruin a ViT
    warmup_lr: float = 1e-6  # where the warm-up begins
    min_lr: float = 1e-5  # where the schedule ends
    smoothing: float = 0.0  # label smoothing of the training loss (the held-out loss has none)
    clip_grad: float | None = 1.0  # largest norm of the gradient; None leaves it alone
    seed: int = 0  # of everything: initial weights, order, augmentation, dropout
    mixed_precision: Precision = "no"  # bf16 or fp16 where the hardware has it

    # what is watched
    probe: tuple[str, ...] = ()  # analyses made during training, e.g. ('attention',)
    probe_every: int = 1  # epochs between two of them; the untrained and the finished model are always probed
    probe_images: int = 500  # fixed images per split, spread over the classes
    probe_splits: tuple[str, ...] = ("train", "test")  # which of the two are probed

    # how it runs
    checkpoint_steps: int = 0  # also save every so many steps; 0: at the end of every epoch only
    device: Literal["auto", "cpu"] = "auto"  # auto: a GPU where there is one
    workers: int = 0  # processes that read images; small pictures need none
    overwrite: bool = False  # replace a run of another configuration
    progress: bool = True  # a bar on stderr

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:  # NaN is in no range
                expected = f"at least {low}" if high == float("inf") else f"between {low} and {high}"
                raise VitscopeError(f"{name}={value} makes no training: expected {expected}.")
        for name, known in _CHOICES.items():
            if getattr(self, name) not in known:
                raise VitscopeError(f"There is no {name} {getattr(self, name)!r}. Known: {', '.join(known)}.")
        for split in self.probe_splits:
            if split not in ("train", "test"):
                raise VitscopeError(f"probe_splits can hold 'train' and 'test', not {split!r}.")
        # lists come from YAML; a tuple is equal to itself after a round trip
        object.__setattr__(self, "probe", tuple(self.probe))
        object.__setattr__(self, "probe_splits", tuple(self.probe_splits))
        object.__setattr__(self, "model_options", dict(self.model_options))
        object.__setattr__(self, "optimizer_options", dict(self.optimizer_options))

    @property
    def look_size(self) -> int:
        """Images per forward pass without gradients: what can be trained on can be looked at."""
        return min(self.batch_size, 256)

    def to_config(self) -> dict[str, Any]:
        """What config.yaml keeps: everything but where the run lies and how it is shown."""
        values = {f.name: getattr(self, f.name) for f in dataclasses.fields(self) if f.name not in _NOT_SAVED}
        return {k: list(v) if isinstance(v, tuple) else v for k, v in values.items()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changes: Any) -> TrainOptions:
        """The inverse, with `changes`. A name that is no option is an error that suggests the nearest."""
        values = {**config, **changes}
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise VitscopeError(f"Training has no option {name!r}.{suggest(name, known)}")
        return cls(**values)


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
    ("clip_grad", 1e-12, _INFINITY),
    ("probe_every", 1, _INFINITY),
    ("probe_images", 1, _INFINITY),
    ("checkpoint_steps", 0, _INFINITY),
    ("workers", 0, _INFINITY),
)
_CHOICES: dict[str, tuple[str, ...]] = {
    "augment": get_args(Augment),
    "mixed_precision": get_args(Precision),
    "schedule": get_args(Schedule),
    "device": ("auto", "cpu"),
}
