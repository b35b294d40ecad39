"""What an analysis is asked for, in plain values: typed on the command line, read from YAML, repeated from a run."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from vitscope.analyses.naming import check_names, with_options
from vitscope.analyses.options import CommaWords, EngineOptions, ImageOptions, ModelOptions, changed, with_values
from vitscope.analyses.saved_request import OF_TEXTS, options_of_run
from vitscope.attention.description import check_names as check_attentions
from vitscope.data.registry import check_labels, check_place, list_datasets
from vitscope.errors import VitscopeError
from vitscope.models.naming import check_class_files, check_model_name, check_weights_file
from vitscope.models.preprocess_words import check_words, preprocess_in_words
from vitscope.processes import local_device
from vitscope.runs.run import Run

if TYPE_CHECKING:
    from vitscope.analyses.selection import Wanted
    from vitscope.data import ImageData
    from vitscope.models import Model

R = TypeVar("R", bound="Request")


@dataclass(frozen=True)
class Request(EngineOptions, ImageOptions, ModelOptions):
    """What all requests have in common: models and images are opened, and passed through the engine."""

    kind: ClassVar[str] = "analyze"  # of the run; a study that passes its own data through the engine has its own
    needs_data: ClassVar[bool] = True  # can it do without `data`?
    still_free: ClassVar[Mapping[str, Any]] = {}  # options of images that mean something beside loaded data, and unset

    def __post_init__(self) -> None:
        if isinstance(self.weights, str | Path):
            object.__setattr__(self, "weights", (str(self.weights),))
        super().__post_init__()
        if self.models:
            self._check_weights(self.models)

    @classmethod
    def from_config(cls: type[R], config: Mapping[str, Any], directory: Path | None = None) -> R:
        """From a run's config.yaml, or from a file that uses the names of these options.

        Relative paths of a run are meant from `directory`, where it was started.
        """
        resolved = isinstance(config.get("data"), Mapping)
        return with_values(cls(), cls._of_run(config, directory) if resolved else config)

    @classmethod
    def called_with(cls: type[R], options: R | None, given: Mapping[str, Any], out: str | Path | None = None) -> R:
        """What a function was given: an options object, keywords, or both."""
        if options is not None and not isinstance(options, cls):
            raise VitscopeError(f"options: expected {cls.__name__}(...), not {options!r}.")
        return with_values(options or cls(), given if out is None else {**given, "out": out})

    @classmethod
    def _of_run(cls, config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
        """The options that lead to the configuration of a run."""
        return options_of_run(config, directory)

    def check(self) -> None:
        """Refuse misspelt names and paths at once, without PyTorch: all that comes later takes seconds or fetches."""
        from vitscope.data.mask_decoding import find_decoding
        from vitscope.data.masks import check_rule

        check_attentions(self.attention)
        if self.preprocess is not None:
            check_words(self.preprocess)
        if self.mask_decoding is not None:
            find_decoding(self.mask_decoding)
        check_rule(self.mask_rule)
        if self.needs_data:
            self._check_data_given()
        self._check_models_given()
        if self.data:
            check_place(self.data, self.root)
        check_labels(self.labels, self.root)
        for file in self.weights:
            if file != "random":
                check_weights_file(file)
        check_class_files(self.class_vectors, self.class_names)
        for name in self.models:
            check_model_name(name)

    def _check_data_given(self) -> None:
        if not self.data:
            raise VitscopeError(
                f"No data is given: --data takes a folder or one of {', '.join(list_datasets())}, "
                "for example --data mnist5k."
            )

    def _check_models_given(self) -> None:
        if not self.models:
            raise VitscopeError("No model is given: name one, such as vit_tiny_patch16_224 (`vitscope models`).")

    def _check_weights(self, models: Sequence[Any]) -> None:
        if self.weights and len(self.weights) != len(models):
            raise VitscopeError(
                f"{len(self.weights)} weights for {len(models)} models: give one per model, in the same order, "
                "or none ('random' stands for random weights)."
            )

    def load(self, data: ImageData | None = None) -> ImageData:
        """The images that are meant. Of those that are loaded nothing can be chosen any more."""
        if data is not None:
            if names := changed(replace(self, **self.still_free), ImageOptions):
                raise VitscopeError(f"The data are already loaded: give {names} to load_data instead.")
            return data
        from vitscope.data import load_data

        self._check_data_given()
        values = {f.name: getattr(self, f.name) for f in fields(ImageOptions)}
        named = {"list_file": values.pop("list"), "masks": None if values.pop("masks") else False}
        plain = ImageOptions()
        values = {n: value for n, value in values.items() if n not in OF_TEXTS or value != getattr(plain, n)}
        return load_data(values.pop("data"), seed=self.seed, **named, **values)

    def open(self) -> Sequence[Model]:
        """The models that are meant, each with its weights."""
        self._check_models_given()
        return [*self.opened(self.models, self.seed)]

    def opened(self, models: Sequence[Any], seed: int) -> Iterator[Model]:
        """Models by name, by folder or as a module, one after the other; those that are open are left as they are."""
        from vitscope.models import Model, open_model

        self._check_weights(models)
        settings = {"seed": seed, **self.opening()}
        for item, file in zip(models, self.weights or (None,) * len(models)):
            if isinstance(item, Model):
                if names := changed(replace(self, models=(), device="cpu"), ModelOptions):
                    raise VitscopeError(f"{item.name} is already open: give {names} to open_model instead.")
                yield item
                continue
            model = open_model(item, file, device=local_device(self.device), **settings)
            if self.preprocess is not None:
                model.preprocess = preprocess_in_words(model.preprocess, self.preprocess)
            yield model

    def analyses(self) -> Wanted | None:
        """What the engine is to run; None for the default analyses with their default options."""
        raise NotImplementedError

    @property
    def explicit(self) -> bool | Collection[str]:
        """Were the analyses named, all or these? One that cannot run is then an error."""
        return True

    def suited(self, wanted: Wanted | None, data: Any) -> Wanted | None:
        """The analyses for these data, where that depends on them."""
        return wanted

    def ready(self, model: Model) -> Model:
        """The model as it goes into the engine."""
        return model

    def run(
        self, data: ImageData | None = None, models: Sequence[Model] = (), command: Sequence[str] | None = None
    ) -> Sequence[Run]:
        """Carry it out: the one call behind a command. `data` and `models` where they are open already."""
        if data is None or not models:
            self.check()
        from vitscope.analyses.engine import analyze_models

        wanted = self.analyses()  # refuses what cannot be before a model or a picture is opened
        data = data or self.load()
        wanted = self.suited(wanted, data)
        opened = [self.ready(model) for model in models or self.open()]
        how: dict[str, Any] = {"several": len(opened) > 1, "explicit": self.explicit}
        return analyze_models(opened, data, wanted, self, command=command, kind=self.kind, **how)


def call(
    request: Request, model: Any, data: Any, wanted: Wanted | None = None, explicit: bool | None = None, **how: Any
) -> Run | list[Run]:
    """A request on models and images that a function was given: opened, or what opens them."""
    from vitscope.analyses.engine import analyze_models

    for name, given, option in (("model", model, request.models), ("data", data, request.data)):
        if given is not None and option:
            raise VitscopeError(f"The {name} is given twice: as an argument, and in the options as {option!r}.")
    several = isinstance(model, Sequence) and not isinstance(model, str)
    models = request.models if model is None else model if several else [model]
    if not models:
        raise VitscopeError("No model is given.")
    several = several or len(models) > 1
    named = request.explicit or wanted is not None if explicit is None else explicit
    wanted = request.analyses() if wanted is None else wanted
    if isinstance(data, str | Path):
        request, data = replace(request, data=str(data)), None
    loaded = request.load(data)
    wanted = request.suited(wanted, loaded)
    opened = request.opened(models, request.seed if model is None else 0)  # what is given opens as by `open_model`
    how = {"several": several, "explicit": named, "kind": request.kind, **how}
    runs = analyze_models(map(request.ready, opened), loaded, wanted, request, **how)
    return runs if several else runs[0]


@dataclass(frozen=True)
class AnalysisOptions(Request):
    """What requests for analyses of any choice have in common."""

    set: Mapping[str, Any] = field(default_factory=dict)  # options of analyses, e.g. save.dtype=float16
    save: tuple[str, ...] = ()  # points whose activations are written to disk, e.g. 'blocks.*.hook_resid_post'


@dataclass(frozen=True)
class AnalyzeOptions(AnalysisOptions):
    """Look inside one or more models in one pass over the data; write tables and a report.

    Stopped or killed, the same command goes on where it was. Several models give one report.
    """

    only: CommaWords | None = None  # analyses by name, separated by commas; none: those that run by default

    def __post_init__(self) -> None:
        if isinstance(self.only, str):
            object.__setattr__(self, "only", (self.only,))
        if isinstance(self.only, list | tuple) and any(hasattr(entry, "needs") for entry in self.only):
            raise VitscopeError("only: expected names of analyses. Analysis objects are given as analyses=[...].")
        super().__post_init__()
        if self.only is not None:
            object.__setattr__(self, "only", split_words(self.only))

    @classmethod
    def _of_run(cls, config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
        values = options_of_run(config, directory)
        named = config["analyses"].items()
        given = {f"{name}.{key}": value for name, options in named for key, value in (options or {}).items()}
        return {**values, "only": [name for name, _ in named], "set": given}

    def check(self) -> None:
        saving = ("save",) if self.save else ()
        check_names(None if self.only is None else (*self.only, *saving), self.set)
        if place := self.set.get("probes.train"):
            check_place(place, None)
        super().check()

    @property
    def explicit(self) -> bool:
        return self.only is not None

    def analyses(self) -> Wanted | None:
        """{name: options}, or None for the default analyses with their default options."""
        from vitscope.analyses.selection import choose_analyses

        if not self.set and not self.save:
            return None if self.only is None else {name: {} for name in self.only}
        chosen = with_options([a.name for a in choose_analyses(self.only, self.save)], self.set)
        if self.save:
            chosen["save"]["points"] = [*self.save]
        return chosen


@dataclass(frozen=True)
class StudyOptions(AnalysisOptions):
    """A request for analyses that belong together, with options in common: subclasses write `by_analysis`."""

    @classmethod
    def _of_run(cls, config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
        raise VitscopeError("The configuration of a run names analyses: it goes to `vitscope analyze --config`.")

    def by_analysis(self) -> dict[str, dict[str, Any]]:
        """{analysis: options}"""
        raise NotImplementedError

    def as_request(self) -> AnalyzeOptions:
        """The same as a request to `analyze`."""
        chosen = self.by_analysis()
        given = {f"{name}.{key}": value for name, settings in chosen.items() for key, value in settings.items()}
        base = {option.name: getattr(self, option.name) for option in fields(AnalysisOptions)}
        return AnalyzeOptions(**{**base, "only": tuple(chosen), "set": {**given, **self.set}})

    def check(self) -> None:
        self.as_request().check()

    def analyses(self) -> Wanted | None:
        return self.as_request().analyses()


def split_words(words: Sequence[str]) -> tuple[str, ...]:
    """('accuracy,attention', 'save') -> ('accuracy', 'attention', 'save')"""
    return tuple(name.strip() for word in words for name in word.split(",") if name.strip())
