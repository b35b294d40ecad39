"""Options that every look inside has: which models, which images, how the pass is made.

An option is written once, as a field: its name is the keyword in Python, the key in YAML and the flag on the command
line, its default holds for all three, and its comment is what `--help` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

from vitscope.errors import VitscopeError, suggest
from vitscope.options import check_fields

T = TypeVar("T", bound="ModelOptions | ImageOptions | EngineOptions")


@dataclass(frozen=True)
class Typed:
    """How an option is typed, where its name and type do not say it: `Annotated[str, Typed("EPS")]`."""

    metavar: str | None = None  # what stands for the value in the help
    positional: bool = False  # typed without its flag
    kind: Any = None  # a narrower type than Python takes


ModelNames = Annotated[tuple[str, ...], Typed("MODEL [MODEL ...]", positional=True)]
CommaWords = Annotated[tuple[str, ...], Typed("A,B")]


@dataclass(frozen=True)
class ModelOptions:
    """Which models, and how they are opened."""

    models: ModelNames = ()  # timm names, with or without tag, or folders of `vitscope train`
    weights: tuple[str, ...] = ()  # one per model: a .safetensors or .pth file, or 'random'; nothing given: timm's own
    use_ema: bool = True  # averaged weights, where a file has plain ones, too; a run says which were taken
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for timm.create_model, e.g. img_size=384
    attention: str | None = None  # convert to another attention first, e.g. 'rpc:layers=0,iterations=4'
    preprocess: str | None = None  # not the model's own: a study's (reproduction), or words such as squash,mean=0.5
    class_vectors: str | None = None  # of an image tower (CLIP, SigLIP): .npy, a row per class; then it has classes
    class_names: str | None = None  # of the class vectors: a text file, one name per line
    logit_scale: float = 100.0  # times the cosine of image and class vector; CLIP's. It decides probabilities alone
    logit_bias: float = 0.0  # added to it, as SigLIP does
    device: str = "cpu"  # cpu, cuda (under torchrun: one GPU per process), cuda:1, mps

    def opening(self) -> dict[str, Any]:
        """What `open_model` is told besides name, weights and device."""
        found = {"use_ema": self.use_ema, "attention": self.attention, **self.model_options}
        if self.class_vectors is not None:
            named = ("class_vectors", "class_names", "logit_scale", "logit_bias")
            found |= {name: getattr(self, name) for name in named}
        return found


@dataclass(frozen=True)
class ImageOptions:
    """Which images."""

    data: str = ""  # a data set's name, a folder, or package.module:function
    split: str | None = None  # train, val, test or a folder's name; none: the held-out part
    root: str | None = None  # the folder where a named data set lies
    labels: str | None = None  # the folder of label maps for the images of a folder: segmentation
    images: int | None = None  # this many, seeded and spread over the classes; none: all
    per_class: int | None = None  # this many of each class
    list: str | None = None  # a CSV file that names the images
    every: int = 1  # the images 0, every, 2 every, ... only
    first: int | None = None  # the first so many, after all other choices
    share: float = 1.0  # of the images
    download: bool = False  # fetch a named data set that is not there
    strict: bool = False  # stop at unreadable images and doubtful data instead of leaving them out and listing them
    masks: bool = True  # read masks where the data has them
    mask_decoding: str | None = None  # how masks are stored, if not as 0, 1 and 255: nonzero, half or alpha
    mask_rule: str = "centre"  # the pixel of a mask that speaks for a patch: centre, or corner as in a published study
    unit: Annotated[str | None, Typed("lines|documents|windows")] = None  # of texts; none: lines, or documents
    min_chars: int = 1  # shorter texts are left out
    column: str | None = None  # of .jsonl, .csv and .tsv files; none: text, or sentence
    label_column: str | None = None  # of texts' classes in such a file, or 'folders'; none: no classes are wanted
    context: int | None = None  # tokens of a text or window that are used; none: as many as the model takes
    stride: int | None = None  # tokens between the beginnings of windows; none: they do not overlap
    joined: bool = False  # windows over the whole text instead of each document
    bos: bool = False  # every window begins with the token that begins a text
    windows: int | None = None  # the first so many windows only


@dataclass(frozen=True)
class EngineOptions:
    """How the pass is made. Only `batch_size` and `seed` can change a result of the model itself."""

    seed: int = 0  # of every choice made at random
    control: Annotated[str | None, Typed("random")] = None
    """random: every analysis also looks at the same architecture with random weights"""
    out: str | None = None  # the run folder; for several models the folder of their folders; none: below runs/
    batch_size: int = 64  # images per forward pass; a resumed run keeps it
    workers: int = 0  # processes that read images; 0: this one does
    gallery: int = 8  # images that the report shows with their maps
    save_every: float = 60.0  # seconds between two saved states: what a kill can cost
    report: bool = True  # write report.html
    progress: bool = True  # show a progress bar on stderr
    overwrite: bool = False  # replace a run of another configuration

    def __post_init__(self) -> None:
        for option in fields(self):
            if isinstance(value := getattr(self, option.name), Path):
                object.__setattr__(self, option.name, str(value))  # as files and the command line have it
        check_fields(self)
        for name, least in (("batch_size", 1), ("workers", 0), ("gallery", 0), ("save_every", 0)):
            if getattr(self, name) < least:
                raise VitscopeError(f"{name} must be at least {least}, not {getattr(self, name)}.")


def with_values(options: T, values: Mapping[str, Any]) -> T:
    """The options changed by keywords or by the lines of a file; a name that is none suggests the nearest."""
    known = [option.name for option in fields(options)]
    for name in values:
        if name not in known:
            raise VitscopeError(f"There is no option {name!r}.{suggest(name, known)} Known: {', '.join(known)}.")
    return replace(options, **values)


def changed(options: T, group: type[ModelOptions] | type[ImageOptions]) -> str:
    """The options of a group that are not as by default: '`split`, `images`', or ''."""
    plain = group()
    names = [f.name for f in fields(group) if getattr(options, f.name) != getattr(plain, f.name)]
    return ", ".join(f"`{name}`" for name in names)
