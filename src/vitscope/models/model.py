"""Model: a ViT of timm or a text model of transformers or of our own, wrapped and never rewritten."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from vitscope.architectures.compiled import refuse_compiled
from vitscope.architectures.families import absent_points, blocks_of, check_model, classes_of, family_of
from vitscope.architectures.layout import Layout, derive_layout
from vitscope.architectures.text_layout import TextLayout
from vitscope.capture import Cache, Edit, Parts, Tracer, resolve
from vitscope.errors import UnsupportedModelError, VitscopeError, first_line
from vitscope.models import class_space, learnt_lens, vocabulary
from vitscope.models.decomposition import Classes, Decomposition
from vitscope.models.inputs import Inputs, prepared, tokenizing
from vitscope.models.text_preprocess import TextPreprocess


class Model:
    """Reads and changes any point of `module`, and knows its token layout, preprocessing and way into class space.

    `source` is what a run records of it (name, weights, their hash); `notes` are remarks for the user.
    """

    def __init__(
        self,
        module: nn.Module,
        name: str,
        preprocess: Any,  # Preprocess, or TextPreprocess of a text model
        source: Mapping[str, Any] | None = None,
        notes: Sequence[str] = (),
        classes: Sequence[str] | None = None,
    ) -> None:
        refuse_compiled(module)
        self.family, self.row = check_model(module), family_of(module)
        self.module = module
        self.name = name
        self.preprocess = preprocess
        self.layout: Layout = derive_layout(module)
        if isinstance(preprocess, TextPreprocess) and isinstance(self.layout, TextLayout):
            self.layout = replace(self.layout, separators=preprocess.separators)
        self.source = dict(source or {"name": name})
        self.notes = list(notes)
        self.absent = absent_points(module)  # points that there are none of, each with the reason
        self.classes = list(classes) if classes else None  # class names where the weights came with them
        self._tracers: list[Tracer] = []  # active `edits`, outermost first

    @property
    def num_classes(self) -> int:
        """Classes of the head, or words of the vocabulary; 0 without a head."""
        return classes_of(self.module)

    @property
    def device(self) -> torch.device:
        return next(self.module.parameters()).device

    @property
    def blocks(self) -> list[nn.Module]:
        """The transformer blocks, in their order."""
        return blocks_of(self.module)

    def place(self, inputs: Any) -> Any:
        """Inputs where the weights are, and in their precision; numbers of tokens stay whole."""
        if isinstance(inputs, Mapping):
            return {name: self.place(part) for name, part in inputs.items()}
        weights = next(p for p in self.module.parameters() if p.is_floating_point())
        return inputs.to(weights.device, weights.dtype if inputs.is_floating_point() else None, non_blocking=True)

    def to(self, device: str | torch.device) -> Model:
        try:
            self.module.to(device)
        except (RuntimeError, AssertionError) as error:  # no such device, no driver for it, no room on it
            raise VitscopeError(f"{self.name} cannot be put on device {str(device)!r}: {first_line(error)}") from error
        return self

    def __call__(self, inputs: Inputs) -> Tensor:
        """Logits of preprocessed images (B, 3, H, W) -> (B, classes), or of what else the model is called with.

        A text model takes strings, or numbers of tokens (B, N), alone or as `input_ids` with their `attention_mask`
        -> (B, N, vocabulary), and without a head (B, N, width). What stands at padding means nothing.
        """
        return self.ask(self.module, prepared(self, inputs))

    def ask(self, module: nn.Module, inputs: Inputs) -> Tensor:
        """The answer of `module`, which is this model's own or what a training wraps around it."""
        call = self.row.call
        return self.row.answer(module(**inputs, **call) if isinstance(inputs, Mapping) else module(inputs, **call))

    def tokens(self, text: str) -> list[str]:
        """The tokens of a text as a person reads them, special ones included: one name per row of a point."""
        preprocess = tokenizing(self)
        return preprocess.words(preprocess.encode(text))

    def resolve_points(self, names: str | Iterable[str]) -> list[str]:
        """Point names behind names and globs, in forward order."""
        return resolve(names, self.layout.blocks, self.absent)

    def run_with_cache(self, images: Inputs, names: str | Iterable[str] = "*") -> tuple[Tensor, Cache]:
        """One forward pass -> (logits, {point name: value}). The default keeps every point, patterns included.

        Gradients follow the caller: wrap in `torch.no_grad()` unless you want to differentiate through the cache.
        """
        asked = self.resolve_points(names)
        cache = Cache(asked, self.layout.blocks, splitter=self.decomposition)
        return self.stream(images, asked, lambda block, points: cache.update(points)), cache

    def stream(
        self,
        images: Inputs,
        names: str | Iterable[str],
        on_block: Callable[[int, Cache], None],
        *,
        edited: bool = True,
    ) -> Tensor:
        """One forward pass that hands over the points of each block as soon as it is complete, then lets them go.

        Block -1 carries `hook_embed`, block L carries `ln_final.hook_normalized`. `edited=False`: the model as it is,
        without the edits that are active.
        """
        asked = self.resolve_points(names)
        if asked:
            self.check_whole(images)
        with self._trace(asked, {}, on_block, edited):
            return self(images)

    def check_whole(self, images: Inputs) -> None:
        """Raise where a picture goes through the blocks in pieces."""
        looks = getattr(self.module, "looks", None)
        if looks is not None and looks(images) > 1:
            raise UnsupportedModelError(
                f"{self.name} looks at pictures of {images.shape[-2]}x{images.shape[-1]} "  # type: ignore[union-attr]
                f"through {looks(images)} windows each, so that 'the' points of a picture do not exist: give pictures "
                "of at most the window's size, or open it without windows."
            )

    def run_with_hooks(self, images: Inputs, fwd_hooks: Iterable[tuple[str, Edit]]) -> Tensor:
        """Logits of one forward pass in which each `fn(value, point)` may return a new value for its point(s)."""
        with self._trace([], self._resolve_edits(fwd_hooks)):
            return self(images)

    @contextmanager
    def edits(self, changes: Mapping[str, Edit]) -> Iterator[Model]:
        """Change points in every forward pass inside the `with` block: `{name or glob: fn(value, point)}`.

        Blocks nest, inner edits come after outer ones, and reading inside shows the edited values.
        """
        with self._trace([], self._resolve_edits(changes.items())):
            yield self

    def _resolve_edits(self, changes: Iterable[tuple[str, Edit]]) -> dict[str, list[Edit]]:
        edits: dict[str, list[Edit]] = defaultdict(list)
        for names, function in changes:
            if not callable(function):
                raise VitscopeError(
                    f"The edit of {names} is {type(function).__name__}, no function: give fn(value, point), which "
                    "returns the new value."
                )
            for name in self.resolve_points(names):
                edits[name].append(function)
        return edits

    def active_edits(self) -> dict[str, list[str]]:
        """Points that are edited at the moment, each with the names of its functions: what a run records of them."""
        edits = self._tracers[-1].edits if self._tracers else {}
        return {name: [_function_name(function) for function in functions] for name, functions in edits.items()}

    @contextmanager
    def _trace(
        self,
        wanted: Iterable[str],
        edits: Mapping[str, Sequence[Edit]],
        sink: Callable[[int, Cache], None] | None = None,
        edited: bool = True,
    ) -> Iterator[None]:
        """A tracer that takes over the edits of the enclosing one, which stays silent meanwhile."""
        refuse_compiled(self.module)
        outer = self._tracers[-1] if self._tracers else None
        combined: dict[str, list[Edit]] = defaultdict(list)
        for source in (outer.edits if outer and edited else {}, edits):
            for name, functions in source.items():
                combined[name].extend(functions)
        tracer = Tracer(self.module, wanted, combined, sink)
        with tracer:
            if outer:
                outer.suspended = True
            self._tracers.append(tracer)
            try:
                yield
            finally:
                self._tracers.pop()
                if outer:
                    outer.suspended = False

    @property
    def decomposition(self) -> Decomposition:
        """How what its parts write adds up to the residual stream and to the logits."""
        return Decomposition(self)

    def attribute(self, cache: Cache, classes: Classes, minus: Classes | None = None) -> Parts:
        """The logit of a class, split over embedding, heads, MLPs and biases: (parts, B), of a text (parts, B, N).

        classes: one for all or one per image (of a text: per text or token). minus: split the difference to another
        class instead. The final norm is held at the scale that it had; the parts then add up to the logit. The cache
        needs `model.decomposition.needs()`, or everything.
        """
        return self.decomposition.attribute(cache, classes, minus)

    def why_no_class_space(self) -> str | None:
        """Why tokens cannot be projected on classes; None if they can."""
        return class_space.why_no_class_space(self.module, self.name, self._origin())

    @property
    def lenses(self) -> tuple[learnt_lens.Kind, ...]:
        """The learnt lenses that came with the weights: 'refined', 'linear', both or none."""
        return learnt_lens.kinds_of(self.module)

    def to_class_space(
        self, x: Tensor, head: class_space.Head | learnt_lens.Kind = "mean", block: int | None = None
    ) -> Tensor:
        """Logits of tokens (..., C) -> (..., classes) through the model's own final norm and head(s).

        A learnt lens reads the output of `block` with a head of that block's own: 'linear' every token, 'refined' whole
        images, (B, N, C) -> (B, classes). To the model's own heads all blocks are alike.
        """
        if head == "refined" or head == "linear":
            return learnt_lens.read_learnt(self, x, head, block)
        return class_space.to_class_space(self.module, self.name, x, head, self._origin())

    def rank_and_log_probability(self, x: Tensor, targets: Tensor, **at_a_time: int) -> tuple[Tensor, Tensor]:
        """Where one class or word per token stands among all: tokens (..., C), targets (...) -> (...), (...).

        The same as ranks and log-softmax of `to_class_space(x)`, without holding its logits: they are looked at by
        `tokens=256` and `words=16384` at a time.
        """
        class_space.check_class_space(self.module, self.name, self._origin())
        return vocabulary.rank_and_log_probability(self.module, x, targets, **at_a_time)

    def top_words(self, x: Tensor, k: int = 3, **at_a_time: int) -> tuple[Tensor, Tensor]:
        """The k likeliest classes or words of tokens (..., C), best first: numbers (..., k) and log p (..., k)."""
        class_space.check_class_space(self.module, self.name, self._origin())
        return vocabulary.top_words(self.module, x, k, **at_a_time)

    def _origin(self) -> class_space.Origin:
        """Whose outputs the head has, which decides whether they can be an image-text embedding."""
        if self.classes or "class_vectors" in self.source:
            return "classes"
        return "file" if "sha256" in self.source else "tag"

    def __repr__(self) -> str:
        kind = "words" if self.row.text and not self.row.inside else "classes"
        return f"Model({self.name}: {self.family}, {self.layout}, {self.num_classes} {kind})"

    def _repr_html_(self) -> str:
        from vitscope.models.shown import model_html

        return model_html(self)


def _function_name(function: Edit) -> str:
    return f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', type(function).__qualname__)}"
