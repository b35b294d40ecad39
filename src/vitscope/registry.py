"""Things that people extend, by name: one `Registry` for each kind, and the rules that all kinds share.

Names of the package are known before its modules are loaded: they are read off the decorators in the sources, and a
module is imported when one of its names is asked for. So a misspelt name is answered without PyTorch, and a new file
with a decorator is a new analysis, attack or panel.

What lies outside of the package is named by its address, `package.module:Name`, installed or a file in the current
folder (`vitscope.outside`).
"""

from __future__ import annotations

import importlib.util
import inspect
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from vitscope.errors import DataError, VitscopeError, suggest
from vitscope.options import check_finite, read_yaml
from vitscope.outside import find_object, is_outside

T = TypeVar("T")


class Registry:
    """Things of one kind by name: classes, functions, or entries that hold a function."""

    def __init__(
        self,
        kind: str,  # what error messages call one
        decorator: str,  # the name of the function that registers one
        packages: Sequence[str],  # where they live
        *,
        base: str = "",  # address of the class that they inherit from; '' for functions
        public: str = "",  # what users know that class as
        error: type[VitscopeError] = VitscopeError,
        normal: Callable[[str], str] = str,  # spellings that mean the same name
    ) -> None:
        self.kind, self.decorator, self.packages = kind, decorator, tuple(packages)
        self.base, self.public, self.error, self.normal = base, public, error, normal
        self._things: dict[str, Any] = {}
        self._homes: dict[str, str] | None = None  # name -> module of the package, read when first needed

    def add(self, name: str, thing: T) -> T:
        """Make `thing` known under `name`. A later one of your own replaces an earlier one; ours cannot be replaced."""
        name = self.normal(name)
        if is_outside(thing) and name in self.homes():
            raise self.error(f"The name {name!r} belongs to {_a(self.kind)} of vitscope: choose another one for yours.")
        self._things[name] = thing
        return thing

    def homes(self) -> dict[str, str]:
        """{name: module} of the package, from its sources: nothing is imported."""
        if self._homes is None:
            pattern = re.compile(rf'^@{self.decorator}\(\s*"([^"]+)"', re.MULTILINE)
            files = [(module, file) for package in self.packages for module, file in _sources(package)]
            self._homes = {self.normal(n): m for m, file in files for n in pattern.findall(file.read_text("utf-8"))}
        return self._homes

    def names(self) -> list[str]:
        """What is known: all of the package, and what others have registered so far."""
        return sorted({*self.homes(), *self._things})

    def load_all(self) -> dict[str, Any]:
        """{name: thing} with every module of the package that holds one imported."""
        for module in dict.fromkeys(self.homes().values()):
            importlib.import_module(module)
        return {name: self._things[name] for name in sorted(self._things)}

    def find(self, name: str) -> Any | None:
        """The thing of that name, or None."""
        name = self.normal(name)
        if name not in self._things and name in self.homes():
            importlib.import_module(self.homes()[name])
        return self._things.get(name)

    def get(self, word: str) -> Any:
        """The thing behind a name or an address, or an error that suggests the nearest name."""
        return self.resolve(word)[1]

    def resolve(self, word: str) -> tuple[str, Any]:
        """(name, thing) behind a name or an address: what a decorator has named keeps that name, else the address."""
        found = self.find(word)
        if found is not None:
            return self.normal(word), found
        if ":" not in word:
            raise self.unknown(word)
        thing = find_object(word, self.kind, self.error)
        self._check(word, thing)
        for name, known in self._things.items():
            if known is thing or getattr(known, "function", None) is thing:
                return name, known
        return word, self.adopt(word, thing)

    def loaded(self, word: str) -> tuple[str, Any]:
        """As `resolve`, but nothing is imported: the word and None where nobody has done so."""
        for name, thing in self._things.items():
            if word in (name, f"{getattr(thing, '__module__', '')}:{getattr(thing, '__name__', '')}"):
                return name, thing
        return word, None

    def called(self, word: str) -> str:
        """The name behind a name or an address. Only an address is looked up, which imports its module."""
        return self.resolve(word)[0] if ":" in word else word

    def adopt(self, name: str, thing: T) -> T:
        """Register a thing, and tell it its name if it is a class: its address where it has no other."""
        if isinstance(thing, type):
            thing.name = name  # type: ignore[attr-defined]
        return self.add(name, thing)

    def named(self, name: str) -> Callable[[T], T]:
        """What a class decorator returns that makes classes known under a name."""
        return lambda cls: self.adopt(name, cls)

    def create(self, name: str, options: Mapping[str, Any]) -> Any:
        """One of the classes by name or address, made with options; unknown ones and wrong types are refused."""
        known = self.get(name)
        check_options(options, option_names(known), self.kind, name)
        check_types(options, known, self.kind, name)
        return known(**options)

    def check_name(self, word: str) -> None:
        """Raise at a name that nobody has registered, without importing anything. Addresses are judged later."""
        if ":" not in word and self.normal(word) not in self.names():
            raise self.unknown(word)

    def unknown(self, word: str) -> VitscopeError:
        known = self.names()
        return self.error(f"There is no {self.kind} {word!r}.{suggest(word, known)} Known: {', '.join(known)}.")

    def _check(self, address: str, thing: Any) -> None:
        if not self.base:
            if not callable(thing):
                raise self.error(f"{address!r} is not {_a(self.kind)}: expected a function.")
            return
        module, _, name = self.base.partition(":")
        base = getattr(importlib.import_module(module), name)
        if not (isinstance(thing, type) and issubclass(thing, base)):
            raise self.error(f"{address!r} is not {_a(self.kind)}: expected a subclass of {self.public}.")

    @contextmanager
    def restored(self) -> Iterator[None]:
        """What is registered inside the block from outside of the package is forgotten after it."""
        before = dict(self._things)
        try:
            yield
        finally:
            self._things = {**before, **{n: t for n, t in self._things.items() if not is_outside(t)}}

    def __repr__(self) -> str:
        return f"Registry({self.kind}: {', '.join(self.names())})"


ANALYSES = Registry(
    "analysis",
    "register_analysis",
    ("vitscope.analyses", "vitscope.robustness"),
    base="vitscope.analyses.base:Analysis",
    public="vitscope.Analysis",
)
ATTENTIONS = Registry(
    "attention",
    "register_attention",
    ("vitscope.attention",),
    base="vitscope.attention.module:AttentionModule",
    public="vitscope.attention.AttentionModule",
)
ATTACKS = Registry(
    "attack",
    "register_attack",
    ("vitscope.robustness.attacks",),
    base="vitscope.robustness.attacks.registry:Attack",
    public="vitscope.robustness.Attack",
)
CORRUPTIONS = Registry("corruption", "register_corruption", ("vitscope.robustness.corruptions",))
SETS = Registry("set", "register_set", ("vitscope.robustness.sets",), normal=lambda n: n if ":" in n else n.upper())
DATASETS = Registry(
    "dataset",
    "register_dataset",
    ("vitscope.data",),
    error=DataError,
    normal=lambda n: n if ":" in n else n.strip().lower().replace("_", "-"),  # 'Fashion_MNIST' is 'fashion-mnist'
)
TASKS = Registry(
    "task", "register_task", ("vitscope.tasks",), base="vitscope.tasks.base:Task", public="vitscope.tasks.Task"
)
PAIRS = Registry(
    "kind of pairs",
    "register_pairs",
    ("vitscope.analyses.causes", "vitscope.robustness"),
    base="vitscope.analyses.causes.pairs:Pairs",
    public="vitscope.analyses.causes.Pairs",
)
BUILDERS = Registry("model", "register_model", ("vitscope.models",))
PANELS = Registry(
    "panel",
    "register_panel",
    ("vitscope.analyses", "vitscope.robustness", "vitscope.training", "vitscope.sweeps", "vitscope.explorer"),
)
DISPLAYS = Registry("display", "register_display", ("vitscope.report",))  # how a notebook shows things of lower rooms
ALL = (ANALYSES, ATTENTIONS, ATTACKS, CORRUPTIONS, SETS, DATASETS, TASKS, PAIRS, BUILDERS, PANELS)


def outside_modules(config: Any) -> list[str]:
    """Modules outside of the package whose things a configuration names, or which draw panels: what a run remembers."""
    words = {word for text in _texts(config) for word in re.split(r"[,;\s]+", text)}
    words |= {word[: at.start()] for word in words for at in re.finditer(":", word)}  # 'rpc:layers=0' names 'rpc'
    found = set()
    for registry in ALL:
        named = registry._things if registry is PANELS else {registry.normal(word) for word in words}
        things = [getattr(t, "function", t) for name, t in registry._things.items() if name in named]
        found |= {thing.__module__ for thing in things if is_outside(thing)}
    return sorted(found)


def _texts(value: Any) -> Iterator[str]:
    """Every key and text of nested mappings and lists."""
    if isinstance(value, Mapping):
        value = [*value, *value.values()]
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)


def _sources(package: str) -> Iterator[tuple[str, Path]]:
    """(module, file) of everything in a package, without importing it."""
    spec = importlib.util.find_spec(package)  # imports the parents only, which are lazy
    for root in map(Path, (spec and spec.submodule_search_locations) or ()):
        for file in sorted(root.rglob("*.py")):
            parts = file.relative_to(root).with_suffix("").parts
            yield ".".join([package, *(p for p in parts if p != "__init__")]), file


def _a(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"


def option_names(takes: Callable[..., Any]) -> list[str]:
    """What a class or function takes by name."""
    parameters = inspect.signature(takes).parameters.values()
    return [p.name for p in parameters if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]


def check_options(given: Iterable[str], known: Sequence[str], kind: str, name: str) -> None:
    """Raise at the first option that is not among `known`, with the nearest one."""
    for option in given:
        if option not in known:
            takes = f"It takes {', '.join(known)}." if known else "It takes none."
            raise VitscopeError(
                f"{kind.capitalize()} {name!r} has no option {option!r}.{suggest(option, known)} {takes}"
            )


_SCIENTIFIC = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def read_value(text: str, where: str = "") -> Any:
    """YAML: 4, 0.5, true, null and [1, 2] mean what they say; 1e-3, which YAML takes for a word, is a number."""
    return float(text) if _SCIENTIFIC.fullmatch(text.strip()) else read_yaml(text, where or repr(text))


WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false", "str": "a word", "None": "nothing"}


def check_types(options: Mapping[str, Any], takes: Callable[..., Any], kind: str, name: str) -> None:
    """Raise at the first number, flag or word that is none, by the annotations of what takes the options.

    Other kinds of values are left to those who know what they mean, but NaN and infinity mean nothing to anyone.
    """
    parameters = inspect.signature(takes).parameters
    for option, value in options.items():
        check_finite(value, f"{kind.capitalize()} {name!r}: {option}")
        annotation = parameters[option].annotation
        text = annotation if isinstance(annotation, str) else getattr(annotation, "__name__", str(annotation))
        kinds = [word.strip() for word in re.split(r"\|(?![^\[]*\])", text)]  # not at the | of `Sequence[str | int]`
        if all(_words(k) for k in kinds) and not any(_is(value, k) for k in kinds):
            expected = " or ".join(map(_words, kinds))
            raise VitscopeError(f"{kind.capitalize()} {name!r}: {option} must be {expected}, not {value!r}.")


def _words(kind: str) -> str:
    """'int' -> 'a whole number', 'Sequence[int]' -> 'a list (each a whole number)'; '' for other kinds."""
    if kind.startswith("Sequence["):
        inner = [_words(k.strip()) for k in kind[9:-1].split("|")]
        return f"a list (each {' or '.join(inner)})" if all(inner) else ""
    return WORDS.get(kind, "")


def _is(value: Any, kind: str) -> bool:
    if kind.startswith("Sequence["):
        inner = [k.strip() for k in kind[9:-1].split("|")]
        items = [value] if isinstance(value, str) else value  # one word may stand for a list of one
        return isinstance(items, list | tuple) and all(any(_is(item, k) for k in inner) for item in items)
    if isinstance(value, bool) or value is None:
        return kind == ("None" if value is None else "bool")
    types: dict[str, tuple[type, ...]] = {"int": (int,), "float": (int, float), "str": (str,)}
    return isinstance(value, types.get(kind, ()))
