"""What a training on texts starts from: a vocabulary of the training part, its streams, and held-out windows."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

from vitscope.data import Data
from vitscope.data.finding import find_source
from vitscope.data.selection import Choice
from vitscope.data.text.dataset import TextData
from vitscope.data.text.loading import choose_texts
from vitscope.data.text.options import TextOptions
from vitscope.data.text.source import WINDOWS, TextSource
from vitscope.data.text.streams import StreamData
from vitscope.data.text.vocabulary import DEFAULT, build_vocabulary, read_tokenizer
from vitscope.errors import DataError, VitscopeError
from vitscope.models.naming import is_own, is_trained
from vitscope.models.own_tokenizer import FILE, preprocess_of, tokenizer_hash
from vitscope.models.text_preprocess import TextPreprocess
from vitscope.registry import BUILDERS
from vitscope.training.options import TrainOptions


def reads_text(model: str) -> bool:
    """Is it a language model of our own, or of somebody else's builder? Those take a `context`."""
    return is_own(model) and "context" in inspect.signature(BUILDERS.get(model)).parameters


def open_texts(options: TrainOptions) -> tuple[Any, Any]:
    """(streams to learn from, held-out windows), both with the vocabulary. Only judging: the windows twice."""
    context, positions = _lengths(options)
    train = _load(options, "train", TextOptions(unit=WINDOWS, joined=True))
    how, tokenizer = _tokenizer(options, train)
    preprocess = preprocess_of(tokenizer, positions, f"vocabulary {how} of {train.name} ({train.split})")
    if (asked := options.model_options.get("num_classes")) is not None:  # a table smaller than the vocabulary
        preprocess.check_vocabulary(int(asked), options.model)
    test = held_out(options, "test", preprocess, context)
    if options.evaluate:
        return test, test
    return StreamData(train, preprocess, context, options.batch_size, f"{how} {tokenizer_hash(preprocess)}"), test


def held_out(
    options: TrainOptions, split: str, preprocess: TextPreprocess, context: int, windows: int | None = None
) -> Data:
    """Windows over the joined text that overlap by one token, so that every token but the first is judged once."""
    cut = TextOptions(unit=WINDOWS, joined=True, context=context, stride=context - 1, windows=windows)
    return _load(options, split, cut).cut(preprocess)


def window_of(options: TrainOptions) -> int:
    """Tokens of a window."""
    return _lengths(options)[0]


def _lengths(options: TrainOptions) -> tuple[int, int]:
    """(tokens of a window, positions of the model), which are the same unless both are given."""
    parameter = inspect.signature(BUILDERS.get(options.model)).parameters["context"]
    given = options.model_options.get("context")
    own = parameter.default if isinstance(parameter.default, int) else None
    context = options.context or given or own
    if context is None:
        raise VitscopeError(f"{options.model} does not say how many tokens it takes: give --context N.")
    positions = given or context
    if not isinstance(positions, int) or context > positions:
        raise VitscopeError(
            f"context={context} is longer than the {positions} positions of the model: leave "
            "--model-options context out, it follows --context."
        )
    return context, positions


def _load(options: TrainOptions, split: str, cut: TextOptions) -> TextData:
    name, share = options.part(split)
    found = find_source(options.data, name, options.root)
    if not isinstance(found.source, TextSource):
        raise DataError(
            f"{options.data} are pictures, and {options.model} reads text: choose texts, such as --data pydoc or a "
            ".txt file, or a model of pictures (--recipe quick)."
        )
    choice = Choice(share=share, seed=options.seed)
    return choose_texts(found, cut, choice, source=str(options.data), root=options.root, strict=options.strict)


def _tokenizer(options: TrainOptions, texts: TextData) -> tuple[str, Any]:
    """(what it is called, the tokenizer): that of the weights where there are any, else a new one."""
    beside = Path(str(options.weights)) / FILE
    if options.weights is not None and is_trained(str(options.weights)) and beside.is_file():
        if options.vocabulary:
            raise VitscopeError(f"{options.weights} knows its vocabulary: leave --vocabulary {options.vocabulary} out.")
        return f"of {beside.parent.name}", read_tokenizer(beside)
    how = options.vocabulary or DEFAULT
    return how, build_vocabulary(how, (texts.read(i).text for i in range(len(texts))))
