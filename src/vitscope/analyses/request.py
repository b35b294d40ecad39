"""What an analysis is asked for, in plain values: typed on the command line, read from YAML, repeated from a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from vitscope.errors import VitscopeError, suggest
from vitscope.options import check_fields
from vitscope.runs.shape import check_saved

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted
    from vitscope.data import ImageData
    from vitscope.models import Model
    from vitscope.runs.run import Run

# the configuration of a run, as the engine saves it
IMAGES = {
    "name?": str, "split": (str, None), "source": str, "root": (str, None), "images": (int, None), "seed?": int,
    "per_class": (int, None), "list_file": (str, None), "every?": int, "share": float, "masks": bool, "n?": int,
    "num_classes?": int, "fingerprint?": str, "mask_decoding?": str, "mask_rule?": str,
}  # fmt: skip
MODEL = {
    "name": str, "options?": {}, "weights?": str, "sha256?": str, "entry?": str, "path?": str,
    "run?": str, "run_path?": str, "attention?": ([{"name": str}], str, None),
}  # fmt: skip
PREPROCESS = dict.fromkeys(
    ("input_size?", "mean?", "std?", "interpolation?", "crop_pct?", "crop_mode?", "source?"), Any
)
ANALYZED = {
    "label?": str, "model": MODEL, "weights_digest?": str, "edits?": {}, "preprocess?": PREPROCESS, "data": IMAGES,
    "analyses": {str: ({}, None)}, "batch_size": int, "seed": int, "gallery": int, "control?": str, "modules?": [str],
}  # fmt: skip


@dataclass(frozen=True)
class AnalyzeOptions:
    """Look inside one or more models in one pass over the data; write tables and a report.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    kind: ClassVar[str] = "analyze"  # of the run; a study that passes its own data through the engine has its own
    needs_data: ClassVar[bool] = True  # can it do without `data`?

    models: tuple[str, ...] = ()  # timm names, with or without tag, or folders of `vitscope train`
    weights: tuple[str, ...] = ()  # one per model: a .safetensors or .pth file, or 'random'; nothing given: timm's own
    use_ema: bool = True  # averaged weights, where a file has plain ones, too; a run says which were taken
    model_options: Mapping[str, Any] = field(default_factory=dict)  # for timm.create_model, e.g. img_size=384
    attention: str | None = None  # convert to another attention first, e.g. 'rpc:layers=0,iterations=4'
    preprocess: str | None = (
        None  # not the model's own: a study's (reproduction), or squash,mean=0.5; see docs/models.md
    )
    device: str = "cpu"  # cpu, cuda (under torchrun: one GPU per process), cuda:1, mps

    data: str = ""  # a data set's name, a folder, or package.module:function
    split: str | None = None  # train, val, test or a folder's name; none: the held-out part
    root: str | None = None  # the folder where a named data set lies
    images: int | None = None  # this many, seeded and spread over the classes; none: all
    per_class: int | None = None  # this many of each class
    list: str | None = None  # a CSV file that names the images
    every: int = 1  # the images 0, every, 2 every, ... only
    share: float = 1.0  # of the images
    seed: int = 0  # of every choice made at random
    download: bool = False  # fetch a named data set that is not there
    strict: bool = False  # stop at unreadable images and doubtful data instead of leaving them out and listing them
    masks: bool = True  # read masks where the data has them
    mask_decoding: str | None = None  # how masks are stored, if not as 0, 1 and 255: nonzero, half or alpha
    mask_rule: str = "centre"  # the pixel of a mask that speaks for a patch: centre, or corner as in a published study

    only: tuple[str, ...] | None = None  # analyses by name, separated by commas; none: those that run by default
    set: Mapping[str, Any] = field(default_factory=dict)  # options of analyses, e.g. save.dtype=float16
    control: str | None = None  # random: every analysis also looks at the same architecture with random weights
    save: tuple[str, ...] = ()  # points whose activations are written to disk, e.g. 'blocks.*.hook_resid_post'

    out: str | None = None  # the run folder; for several models the folder of their folders; none: below runs/
    batch_size: int = 64  # images per forward pass
    workers: int = 0  # processes that read images; 0: this one does
    gallery: int = 8  # images that the report shows with their maps
    save_every: float = 60.0  # seconds between two saved states: what a kill can cost
    report: bool = True  # write report.html
    progress: bool = True  # show a progress bar
    overwrite: bool = False  # replace a run of another configuration

    def __post_init__(self) -> None:
        if isinstance(self.only, str):
            object.__setattr__(self, "only", (self.only,))
        check_fields(self)
        if self.only is not None:
            names = tuple(name.strip() for word in self.only for name in word.split(",") if name.strip())
            object.__setattr__(self, "only", names)
        if self.weights and len(self.weights) != len(self.models):
            raise VitscopeError(
                f"{len(self.weights)} weights for {len(self.models)} models: give one per model, in the same order, "
                "or none ('random' stands for random weights)."
            )

    @classmethod
    def from_config(cls, config: Mapping[str, Any], directory: Path | None = None) -> AnalyzeOptions:
        """From a run's config.yaml, or from a file that uses the names of these options.

        Relative paths of a run are meant from `directory`, where it was started.
        """
        resolved = isinstance(config.get("data"), Mapping)
        values = _of_run(config, directory) if resolved else dict(config)
        known = [f.name for f in dataclasses.fields(cls)]
        for name in values:
            if name not in known:
                raise VitscopeError(f"There is no option {name!r}.{suggest(name, known)} Known: {', '.join(known)}.")
        return cls(**values)

    def check(self) -> None:
        """Refuse misspelt names and paths at once, without PyTorch: all that comes later takes seconds or fetches."""
        from vitscope.analyses.naming import check_names
        from vitscope.attention.description import check_names as check_attentions
        from vitscope.data.mask_decoding import find_decoding
        from vitscope.data.masks import check_rule
        from vitscope.data.registry import check_place
        from vitscope.models.naming import check_model_name, check_weights_file
        from vitscope.models.preprocess_words import check_words

        saving = ("save",) if self.save else ()
        check_names(None if self.only is None else (*self.only, *saving), self.set)
        check_attentions(self.attention)
        if self.preprocess is not None:
            check_words(self.preprocess)
        if self.mask_decoding is not None:
            find_decoding(self.mask_decoding)
        check_rule(self.mask_rule)
        if self.needs_data:
            self._check_data_given()
        self._check_models_given()
        for place, root in ((self.data, self.root), (self.set.get("probes.train"), None)):
            if place:
                check_place(place, root)
        for file in self.weights:
            if file != "random":
                check_weights_file(file)
        for name in self.models:
            check_model_name(name)

    def _check_data_given(self) -> None:
        from vitscope.data.registry import list_datasets

        if not self.data:
            raise VitscopeError(
                f"No data is given: --data takes a folder or one of {', '.join(list_datasets())}, "
                "for example --data mnist5k."
            )

    def _check_models_given(self) -> None:
        if not self.models:
            raise VitscopeError("No model is given: name one, such as vit_tiny_patch16_224 (`vitscope models`).")

    def load(self) -> ImageData:
        """The images that are meant."""
        from vitscope.data import load_data

        self._check_data_given()
        return load_data(
            self.data,
            self.split,
            root=self.root,
            images=self.images,
            per_class=self.per_class,
            list_file=self.list,
            every=self.every,
            share=self.share,
            seed=self.seed,
            strict=self.strict,
            masks=None if self.masks else False,
            mask_decoding=self.mask_decoding,
            mask_rule=self.mask_rule,
            download=self.download,
        )

    def open(self) -> Sequence[Model]:
        """The models that are meant, each with its weights."""
        from vitscope.models import open_model
        from vitscope.models.preprocess_words import preprocess_in_words
        from vitscope.processes import local_device

        self._check_models_given()
        weights = self.weights or (None,) * len(self.models)
        settings = {"seed": self.seed, "use_ema": self.use_ema, "attention": self.attention, **self.model_options}
        models = [
            open_model(name, file, device=local_device(self.device), **settings)
            for name, file in zip(self.models, weights)
        ]
        if self.preprocess is not None:
            for model in models:
                model.preprocess = preprocess_in_words(model.preprocess, self.preprocess)
        return models

    def analyses(self) -> Wanted | None:
        """{name: options}, or None for the default analyses with their default options."""
        from vitscope.analyses.naming import with_options
        from vitscope.analyses.selection import choose_analyses

        if not self.set:
            return None if self.only is None else {name: {} for name in self.only}
        chosen = with_options([a.name for a in choose_analyses(self.only, self.save)], self.set)
        if self.save:
            chosen["save"]["points"] = [*self.save]
        return chosen

    def run(
        self, data: ImageData | None = None, models: Sequence[Model] = (), command: Sequence[str] | None = None
    ) -> Sequence[Run]:
        """Carry it out: the one call behind `vitscope analyze`. `data` and `models` where they are open already."""
        if data is None or not models:
            self.check()
        from vitscope.analyses import analyze

        data = data or self.load()
        opened = list(models) or self.open()
        runs = analyze(
            opened if len(opened) > 1 else opened[0],
            data,
            self.analyses(),
            self.out,
            save=() if self.set else self.save,  # `analyses` has them, with their options
            report=self.report,
            batch_size=self.batch_size,
            seed=self.seed,
            workers=self.workers,
            gallery=self.gallery,
            save_every=self.save_every,
            overwrite=self.overwrite,
            progress=self.progress,
            command=command,
            control=self.control,
            kind=self.kind,
            explicit=self.only is not None,
        )
        return runs if isinstance(runs, list) else [runs]


def _of_run(config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """The options that lead to the configuration of a run."""
    check_saved(config, ANALYZED)
    if config.get("edits"):
        raise VitscopeError(
            f"The model was edited ({', '.join(config['edits'])}) by functions that a configuration cannot hold: make "
            "this run again in Python, inside `model.edits(...)`."
        )
    from vitscope.models.preprocess_words import words_of

    model, data = config["model"], config["data"]
    analyses = config["analyses"]
    weights = model.get("path") or ("random" if str(model.get("weights", "")).startswith("random") else None)
    return {
        "models": [model.get("run_path") or model["name"]],
        "weights": [weights] if weights else [],
        "use_ema": "ema" in model.get("entry", "ema"),  # a file without averaged weights has one answer
        "model_options": {} if "run_path" in model else model.get("options", {}),
        "attention": None if "run_path" in model else _attention_text(model.get("attention", [])),
        "preprocess": words_of(str((config.get("preprocess") or {}).get("source", ""))),
        "data": place_of(data["source"], directory),
        "split": data["split"],
        "root": place_of(data["root"], directory),
        "images": data["images"],
        "per_class": data["per_class"],
        "list": place_of(data["list_file"], directory),
        "every": data.get("every", 1),
        "share": data["share"],
        "masks": data["masks"],
        "mask_decoding": data.get("mask_decoding"),
        "mask_rule": data.get("mask_rule", "centre"),
        "seed": config["seed"],
        "only": list(analyses),
        "set": {f"{name}.{key}": value for name, options in analyses.items() for key, value in (options or {}).items()},
        "batch_size": config["batch_size"],
        "gallery": config["gallery"],
        "control": config.get("control"),
    }


def _attention_text(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """[{'name': 'rpc', 'layers': '0', 'lambda': 4.0}] -> 'rpc:layers=0,lambda=4.0'"""
    texts = [
        f"{entry['name']}:" + ",".join(f"{key}={value}" for key, value in entry.items() if key != "name")
        for entry in entries
    ]
    return ";".join(texts) or None


def place_of(path: str | None, directory: Path | None) -> str | None:
    """A relative path as it was meant where the run was started; names of data sets stay names."""
    if path is None or directory is None or directory == Path.cwd() or not (directory / path).exists():
        return path
    from vitscope.data.registry import find_dataset

    return path if find_dataset(path) else str(directory / path)
