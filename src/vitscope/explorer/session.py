"""Models, data and pictures of one explorer, and the requests that the page can make of them.

Everything here that touches a model runs on the worker thread (`queue.JobQueue`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from vitscope.analyses.engine import unique_label
from vitscope.architectures.families import trunk_of
from vitscope.data import ImageData, synsets
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError
from vitscope.explorer import looking
from vitscope.explorer.changes import Change, edits_of, in_words, parse_changes
from vitscope.explorer.subjects import Origin, Store, Subject, is_whole, parse_subject, picture_subject, text_subject
from vitscope.explorer.transfer import pack
from vitscope.models import Model
from vitscope.models.inputs import tokenizing
from vitscope.tasks import task_of

REMEMBERED = 4  # forward passes: a new class, or a large model's rows, need no other one
Check = Callable[[], None]


@dataclass(frozen=True)
class Asked:
    """What the page wants to see, checked."""

    model: int
    subject: Mapping[str, Any]  # as `parse_subject` gives it
    chosen: int | None
    changes: tuple[Change, ...]
    token: int = 0

    @property
    def key(self) -> str:
        """Of the forward pass behind it."""
        return repr((self.model, sorted(self.subject.items()), self.changes))


class Session:
    """One or more models of one kind, the data, and what was dropped."""

    def __init__(self, models: Sequence[Model], data: ImageData | None = None) -> None:
        if not models:
            raise VitscopeError("No model is given.")
        if len({bool(m.row.text) for m in models}) > 1:
            raise VitscopeError("Models of pictures and of texts cannot be looked at side by side.")
        for model in models:
            if not model.row.text and (model.layout.sequence or not any(model.preprocess.input_size)):
                raise UnsupportedModelError(
                    f"{model.name} takes neither pictures nor texts: there is nothing that the page could show of its "
                    "input. `vitscope analyze` looks inside of it."
                )
            if trunk_of(model.module) is not model.module:
                raise UnsupportedModelError(
                    f"{model.name} has a class for every pixel, and the page shows models with one answer for it all. "
                    "`vitscope analyze` looks inside of it, patch by patch, and its report has the pictures."
                )
        self.models, self.store = list(models), Store()
        self.text = bool(models[0].row.text)
        self.notes: list[str] = []
        self.names: list[str] = []  # told apart where two models share one
        for model in models:
            self.names.append(unique_label(model.name, self.names))
        self._data: list[Any] = [self._matched(model, data) for model in models]
        self._passes: OrderedDict[str, tuple[Subject, looking.Pass]] = OrderedDict()
        self._sources: OrderedDict[str, Tensor] = OrderedDict()  # of patches

    @property
    def data(self) -> ImageData | None:
        return self._data[0]

    def _matched(self, model: Model, data: ImageData | None) -> Any:
        """The data with labels that mean what the head means; without labels where they cannot."""
        if data is None or self.text:
            return data
        try:
            task = task_of(data)
            matched, remark = task.match(model, data)
            task.check(model, matched)
        except DataError as error:
            self.notes.append(f"The true classes are not shown: {error}")
            return data
        self.notes += [remark] if remark else []
        return matched

    def classes(self, model: int) -> list[str]:
        """Names of the classes of a head, by number."""
        m, data = self.models[model], self._data[model]
        if m.row.text:
            return []
        if data is not None and data.num_classes == m.num_classes:
            return list(map(str, data.classes))
        if m.classes:
            return list(map(str, m.classes))
        return imagenet_names(m) or [str(i) for i in range(m.num_classes)]

    def class_name(self, model: int, number: int) -> str:
        if self.text:
            return tokenizing(self.models[model]).words([number])[0]
        return self.classes(model)[number]

    def asked(self, given: Any) -> Asked:
        """Check the page's JSON. No path, module or file name is among what it may say."""
        if not isinstance(given, Mapping):
            raise VitscopeError("A view is a JSON object.")
        number = given.get("model", 0)
        if not is_whole(number, 0, len(self.models) - 1):
            raise VitscopeError(f"There is no model {number!r}: there are {len(self.models)}.")
        model, subject = self.models[number], parse_subject(given.get("subject"))
        chosen, token = given.get("class"), given.get("token", 0)
        if self.text and isinstance(chosen, str):
            chosen = self._word(model, chosen)
        if chosen is not None and not is_whole(chosen, 0, model.num_classes - 1):
            raise VitscopeError(f"There is no class {chosen!r}: {model.name} has {model.num_classes:,}.")
        tokens = len(self.subject(number, subject).words) if self.text else model.layout.tokens
        changes = parse_changes(given.get("changes", []), model, tokens, parse_subject)
        named = tuple(replace(c, source=self.name_of(c.subject)) if c.subject else c for c in changes)
        if not is_whole(token, 0, tokens - 1):
            raise VitscopeError(f"There is no token {token!r}: there are {tokens}.")
        return Asked(number, subject, chosen, named, token)

    def _word(self, model: Model, typed: str) -> int:
        """The token that a typed word is; in most vocabularies a word that others precede begins with a space."""
        preprocess = tokenizing(model)
        found = preprocess.encode_all([f" {typed}", typed], special=False)
        for ids in found:
            if len(ids) == 1:
                return ids[0]
        pieces = ", ".join(f"“{word.strip()}”" for word in preprocess.words(found[-1]))
        raise DataError(
            f"“{typed}” is no single token of {model.name}, but {len(found[-1])}: {pieces}. Choose one of them."
        )

    def name_of(self, subject: Mapping[str, Any]) -> str:
        """'item 3', 'your picture 0f1a', 'another sentence'."""
        if "item" in subject:
            return f"item {subject['item']}"
        return f"picture {subject['hash'][:6]}" if "hash" in subject else "another sentence"

    def subject(self, model: int, named: Mapping[str, Any]) -> Subject:
        """What the page names, as a model takes it."""
        m, data = self.models[model], self._data[model]
        if "text" in named:
            if not self.text:
                raise DataError(f"{m.name} reads pictures, not sentences.")
            return text_subject(m, named["text"])
        if self.text:
            raise DataError(f"{m.name} reads sentences: type one.")
        if "hash" in named:
            kept = self.store.get(named["hash"])
            picture: Any = kept.image if kept.image is not None else kept.pixels
            return picture_subject(m, picture, kept.origin, self.label(model, kept.origin.item))
        if data is None:
            raise DataError("No data is open: drop a picture, or start with --data.")
        item = named["item"]
        if not 0 <= item < len(data):
            raise DataError(f"There is no item {item}: {data.name} has {len(data):,} (0..{len(data) - 1}).")
        return picture_subject(m, data.read(item, masks=False).image, Origin(item=item), self.label(model, item))

    def label(self, model: int, item: int | None) -> int:
        data = self._data[model]
        fits = data is not None and data.num_classes == self.models[model].num_classes
        return int(data.labels[item]) if fits and item is not None else -1

    def passed(self, asked: Asked, check: Check) -> tuple[Subject, looking.Pass]:
        """The forward pass that is asked for, made now or remembered."""
        if asked.key in self._passes:
            self._passes.move_to_end(asked.key)
            return self._passes[asked.key]
        model = self.models[asked.model]
        subject = self.subject(asked.model, asked.subject)
        sources = {c: self._source(asked.model, c) for c in asked.changes if c.subject is not None}
        found = subject, looking.run(model, subject, edits_of(asked.changes, model, sources), check)
        self._passes[asked.key] = found
        while len(self._passes) > REMEMBERED:
            self._passes.popitem(last=False)
        return found

    def _source(self, model: int, change: Change) -> Tensor:
        """The residual (N, C) before the change's block, in the input that a patch is taken from: one plain forward."""
        assert change.subject is not None
        known = self._passes.get(Asked(model, change.subject, None, ()).key)
        if known is not None:
            source = known[1].residuals[change.block]
        else:
            key = repr((model, change.point, sorted(change.subject.items())))
            if key not in self._sources:
                inputs = self.subject(model, change.subject).inputs
                with torch.no_grad():
                    self._sources[key] = self.models[model].run_with_cache(inputs, change.point)[1][change.point][0]
                while len(self._sources) > REMEMBERED:
                    self._sources.popitem(last=False)
            source = self._sources[key]
        if max(change.tokens) >= len(source):
            raise VitscopeError(f"{change.source} has {len(source)} tokens: there is no token {max(change.tokens)}.")
        return source

    def look(self, asked: Asked, check: Check) -> bytes:
        """The transfer behind everything that the page draws of one model."""
        model = self.models[asked.model]
        subject, seen = self.passed(asked, check)
        head, arrays = looking.view(model, seen, subject, asked.chosen)
        if self.text:
            numbers = {c for c, _, _ in head["answers"]} | set(
                arrays["top"].flatten().tolist() if "top" in arrays else ()
            )
            head["names"] = {n: self.class_name(asked.model, n) for n in sorted(numbers)}
        head["changes"] = [in_words(change, model) for change in asked.changes]
        head["steps"] = [step_in_words(step) for step in subject.origin.steps]
        return pack(head, arrays)

    def rows(self, asked: Asked, check: Check) -> bytes:
        return looking.rows(self.passed(asked, check)[1], asked.token)


def step_in_words(step: Any) -> str:
    if step.is_attack:
        return f"{step.name.upper()} with epsilon {step.eps}"
    return f"{step.name.replace('_', ' ')}, severity {step.severity}"


def imagenet_names(model: Model) -> list[str] | None:
    """Words for the classes of a head that timm made for ImageNet, whose order is always the same."""
    made_for = (getattr(model.module, "pretrained_cfg", None) or {}).get("num_classes")
    return list(synsets.class_names()) if model.num_classes == made_for == synsets.NUM_CLASSES else None
