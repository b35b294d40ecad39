"""What a training is told. The command line is made from these fields, and the resolved whole is saved in the run."""

from __future__ import annotations

import dataclasses
import reprlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from vitscope.errors import VitscopeError, suggest
from vitscope.options import BY_SHARE, CHOICES, check_fields
from vitscope.runs.shape import check_saved
from vitscope.training.option_checks import check_ranges, check_together

Augment = Literal["none", "digits", "flip", "crop", "resized", "joint"]
Loss = Literal["cross_entropy", "binary", "asymmetric"]
Distillation = Literal["none", "soft", "hard"]
Precision = Literal["no", "bf16", "fp16"]
Schedule = Literal["cosine", "poly", "tanh", "step", "plateau", "constant"]
Interpolation = Literal["model", "random", "nearest", "bilinear", "bicubic", "lanczos"]
Category = Literal["kingdom", "phylum", "class", "order", "supercategory", "family", "genus", "name"]

# Keys of config.yaml that do not change results (but `accumulate` the last digits): a run may be continued with others.
# `out` is where the run lies, not what it is.
FREE = (
    *("options.workers", "options.device", "device", "options.root", "data.train.root", "data.test.root"),
    "options.accumulate",
    *("options.track", "options.track_project", "options.track_entity", "options.track_name", "options.track_offline"),
)
_NOT_SAVED = ("out", "overwrite", "progress")
# Options that older runs do not name: saved where they are not at their default.
_LATER = (
    *("mask_decoding", "use_ema", "init", "inat_category", "auto_augment", "color_jitter", "train_interpolation"),
    *("erase_mode", "erase_count", "cutmix_minmax", "mixup_prob", "mixup_switch_prob", "mixup_mode"),
    *("rate_set", "decay_epochs", "decay_rate", "patience_epochs", "lr_noise", "lr_noise_pct", "lr_noise_std"),
    *("accumulate", "vocabulary", "context", "warmup_steps", "column", "label_column"),
    *("labels", "augment_options", "freeze", "lr_scale", "poly_power"),
    *("refine", "refine_kind", "refine_loss", "refine_tokens"),
)
TRAINED: dict[str, Any] = {  # the configuration of a run, as it is saved
    "options": {}, "data?": {"name?": str, "train?": {}, "test?": {}}, "label?": str, "model?": {}, "preprocess?": {},
    "task?": {}, "steps_per_epoch?": int, "device?": str, "modules?": [str],
}  # fmt: skip


@dataclass(frozen=True)
class TrainOptions:
    """Every setting of a training run. Two runs with equal options (and as many processes) end with equal weights."""

    out: str | Path = "runs/train"  # the run folder; the same command again resumes it

    # what to learn from
    data: str = "mnist5k"  # any name or folder that load_data takes
    root: str | Path | None = None  # where a named dataset lies
    labels: str | Path | None = None  # a folder of label maps for the pictures of `data`: segmentation
    train_split: str = "train"  # what is learned from
    test_split: str = "test"  # what is held out; 'val' where the data has no 'test'
    inat_category: Category = "name"  # what the classes of `inaturalist` are: species, or something coarser
    share: float = 1.0  # of the training images: how much does less data cost?
    augment: Augment = "none"  # drawn anew for each image and epoch, from (seed, epoch, image)
    augment_options: Mapping[str, Any] = field(default_factory=dict)  # of 'joint': smallest=0.5, largest, most, mirror
    randaugment: str = ""  # timm's RandAugment on top, e.g. 'rand-m9-mstd0.5-inc1'; empty: none
    auto_augment: str = ""  # another of timm's policies in its place: 'original', 'v0-mstd0.5', '3a', 'augmix-m3-w3'
    color_jitter: float = 0.0  # brightness, contrast, saturation; as in timm, only where no such policy is on (or '3a')
    train_interpolation: Interpolation = "model"  # of augment=resized; 'random' draws bilinear or bicubic
    erase: float = 0.0  # probability of timm's random erasing (a box of noise), as DeiT has it
    erase_mode: Literal["pixel", "rand", "const"] = "pixel"  # noise per pixel, one drawn colour, or the mean
    erase_count: int = 1  # boxes at most, which share the area of one
    repeats: int = 1  # repeated augmentation: so many versions of each image of an epoch, which sees fewer images
    mixup: float = 0.0  # alpha of timm's mixup; 0: none
    cutmix: float = 0.0  # alpha of timm's cutmix; with mixup, each batch draws which of the two
    cutmix_minmax: tuple[float, ...] = ()  # sides of the box, e.g. 0.2 0.8, in the place of alpha; turns cutmix on
    mixup_prob: float = 1.0  # how often a batch is mixed at all
    mixup_switch_prob: float = 0.5  # of cutmix, where both are on
    mixup_mode: Literal["batch", "pair", "elem"] = "batch"  # one draw for a batch, for two pictures, or for each
    vocabulary: str = ""  # of texts: words, words:20000, characters, bpe:2000 or a tokenizer.json; empty: bpe:2000
    context: int | None = None  # tokens of a text that are seen at once; None: as many as the model takes
    column: str | None = None  # of labelled texts in a .csv, .tsv or .jsonl; None: text, or sentence
    label_column: str | None = None  # of their classes, or 'folders'; None: label, or a folder per class
    strict: bool = False  # unreadable images and doubtful data stop the run instead of being left out
    mask_decoding: str | None = None  # how masks, which probes read, are stored: nonzero, half, alpha; None: 0, 1, 255

    # what learns
    model: str = "vit_tiny_patch16_224"  # any timm ViT, or 'small'
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for timm.create_model: img_size, drop_path_rate
    in_chans: int | None = None  # 1 for grey pictures, 3 for coloured ones; None: as the model has it
    weights: str | Path | None = None  # where to start: a file, a run folder, or 'pretrained' (timm's own)
    use_ema: bool = True  # averaged weights, where the file of `weights` or `teacher_weights` has plain ones, too
    preprocess: str = "whole"  # of a new model: 'whole' (around grey), 'model' (its own), or words: 'mean=0.1,std=0.3'
    init: Literal["model", "torch"] = "model"  # start of a new model; 'torch': linear layers as PyTorch draws them
    attention: str = ""  # another attention in chosen blocks, e.g. 'rpc:layers=0'; empty leaves the model as it is
    refine: str = ""  # a run folder or model (--weights) that is frozen: heads that read its blocks learn, a lens
    refine_kind: Literal["refined", "linear"] = "refined"  # for whole images; or affine maps for every token
    refine_loss: Literal["published", "cross_entropy", "kl"] = "published"  # kl: to what the last block says
    refine_tokens: int = 32  # tokens of an image that a step of the linear lens reads, drawn anew; 0: all
    label: str = ""  # what reports call it; the model's name if empty

    # how it learns
    epochs: int = 20  # passes over the training images
    batch_size: int = 64  # images per step over all processes together, so that more processes learn the same
    accumulate: int = 1  # pieces of a batch that go through the model one after the other, where memory is too small
    optimizer: str = "adamw"  # any name that timm.optim.create_optimizer_v2 knows, or 'asgd' (PyTorch's)
    optimizer_options: Mapping[str, Any] = field(default_factory=dict)  # for create_optimizer_v2: momentum, betas
    lr: float = 1e-3  # peak learning rate
    lr_batch: int = 0  # lr is meant for batches of this size and scaled to batch_size; 0: lr as it is
    weight_decay: float = 0.05  # not applied to biases and norms, as in timm
    lr_scale: Mapping[str, Any] = field(default_factory=dict)  # of parts that learn slower or faster: encoder=0.1
    freeze: tuple[str, ...] = ()  # parts of the model that learn nothing and are in evaluation mode: encoder
    schedule: Schedule = "cosine"  # timm's; 'plateau' waits for the held-out accuracy
    poly_power: float = 1.0  # of schedule=poly: the rate falls with (1 - step / steps) to this power
    rate_set: Literal["step", "epoch", "late"] = "step"  # how often; 'late': per epoch and one epoch behind, as DeiT
    decay_epochs: float = 30.0  # of schedule=step: epochs between two falls
    decay_rate: float = 0.1  # of schedule=step and plateau: what is left of the rate after a fall
    patience_epochs: int = 10  # of schedule=plateau: epochs without a better accuracy before a fall
    lr_noise: tuple[float, ...] = ()  # from, or from and to, these shares of the epochs the rate is noisy; empty: never
    lr_noise_pct: float = 0.67  # largest relative noise; larger draws are drawn again
    lr_noise_std: float = 1.0  # its deviation before that; timm's and DeiT's programs take 1 whatever is asked for
    warmup_epochs: float = 1.0  # linear from warmup_lr: without it AdamW's first steps can ruin a ViT
    warmup_steps: int = 0  # the same in steps of the optimiser; 0: as warmup_epochs says
    warmup_lr: float = 1e-6  # where the warm-up begins
    min_lr: float = 1e-5  # where the schedule ends; 'step' knows no end
    loss: Loss = "cross_entropy"  # what is minimised; the held-out loss is always the cross-entropy
    smoothing: float = 0.0  # label smoothing of the training loss (the held-out loss has none)
    clip_grad: float | None = 1.0  # largest norm of the gradient; None leaves it alone
    ema: float = 0.0  # decay of an average of the weights (timm's ModelEmaV3), evaluated beside them; 0: none
    distillation: Distillation = "none"  # also learn a teacher's probabilities (soft) or its answer (hard)
    teacher: str = ""  # any classifier of timm (regnety_160), or a run folder; it must know the same classes
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
    probe_images: int | Literal["all"] = 500  # fixed images per split, spread over the classes; 'all' of them
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
        for name in ("probe", "probe_splits", "track", "freeze"):
            value = getattr(self, name)
            object.__setattr__(self, name, (value,) if isinstance(value, str) else value)
        if isinstance(self.data, Path):
            object.__setattr__(self, "data", str(self.data))
        if not isinstance(self.data, str):
            raise VitscopeError(
                f"data: expected a name, a folder or file:function, not {type(self.data).__name__}: a training opens "
                "both parts itself, the one to learn from and the one that is held out."
            )
        check_fields(self)
        for name in ("probe", "probe_splits", "track", "freeze"):  # 'accuracy,attention' is two words
            words = tuple(part.strip() for word in getattr(self, name) for part in word.split(",") if part.strip())
            object.__setattr__(self, name, words)
        check_ranges(self)
        check_together(self)
        for split in self.probe_splits:
            if split not in ("train", "test"):
                raise VitscopeError(f"probe_splits can hold 'train' and 'test', not {split!r}.")
        for name in ("model_options", "optimizer_options", "probe_set", "augment_options", "lr_scale"):
            object.__setattr__(self, name, dict(getattr(self, name)))

    def check(self) -> None:
        """Refuse misspelt names and paths at once, without PyTorch: all that comes later takes seconds or fetches."""
        from vitscope.analyses.naming import check_names
        from vitscope.attention.description import check_names as check_attentions
        from vitscope.data.mask_decoding import find_decoding
        from vitscope.data.registry import check_labels, check_place
        from vitscope.data.text.vocabulary import check_vocabulary
        from vitscope.models.naming import check_model_name, check_weights_file, is_text_model, is_trained

        if self.probe:
            check_names(self.probe, self.probe_set)
        check_attentions(self.attention)
        if self.mask_decoding is not None:
            find_decoding(self.mask_decoding)
        if self.vocabulary:
            check_vocabulary(self.vocabulary)
        check_place(self.data, self.root)
        check_labels(self.labels, self.root)
        for weights in (self.weights, self.teacher_weights):
            if weights is not None and weights not in ("pretrained", "random") and not is_trained(weights):
                if self.model == "text-classifier" and is_text_model(weights):
                    continue
                check_weights_file(weights)
        for name in (self.model, self.teacher, self.refine):
            if name:
                check_model_name(name)

    @property
    def changes_pictures(self) -> bool:
        """Does anything change pictures one by one?"""
        by_picture = self.augment in ("crop", "resized")
        return bool(by_picture or self.randaugment or self.auto_augment or self.color_jitter or self.erase)

    def part(self, split: str) -> tuple[str, float]:
        """What the data call 'train' or 'test', and the share of it that counts."""
        return (self.train_split, self.share) if split == "train" else (self.test_split, 1.0)

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
        for f in dataclasses.fields(self):  # as absent as in older runs, which are then still the same
            if f.name in _LATER and values[f.name] == f.default:
                del values[f.name]
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
        for name, value in values.items():
            if name not in known:
                near = suggest(name, known)
                raise VitscopeError(f"Training has no option {name!r}.{near}{_instead(name, value)}")
        return cls(**values)


def _instead(name: str, value: Any) -> str:
    """Where something lies that is no option of a training: other commands choose images, and models have options."""
    if name in CHOICES:
        return f" {BY_SHARE}: share=0.1."
    return f" If it is an option of the model: model_options={{{name!r}: {reprlib.repr(value)}}}."
