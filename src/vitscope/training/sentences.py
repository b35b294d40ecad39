"""Tuning on labelled texts: SST-2's and IMDB's layouts, any table, and an encoder or language model to start from."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from vitscope.attention import convert_from_description, describe_attention
from vitscope.data.finding import find_source
from vitscope.data.selection import Choice
from vitscope.data.text.labelled import LabelledTexts
from vitscope.data.text.loading import choose_texts
from vitscope.data.text.options import TextOptions
from vitscope.data.text.paths import FOLDERS
from vitscope.data.text.rows import ENDINGS
from vitscope.data.text.source import DOCUMENTS, TextSource
from vitscope.errors import DataError, VitscopeError, WeightsError
from vitscope.models import Model, open_model
from vitscope.models.naming import is_text_model, is_trained
from vitscope.models.text_classifier import NAME, TextClassifier, encoder_json, encoder_of
from vitscope.tasks.classification import some
from vitscope.training.options import TrainOptions


def learns_sentences(options: TrainOptions) -> bool:
    return options.model == NAME


def open_sentences(options: TrainOptions) -> tuple[LabelledTexts, LabelledTexts]:
    """(what is learnt from, what is held out); a class that only the held-out part has is an error."""
    train = load_sentences(options, "train")
    if train.num_classes < 2:
        raise DataError(
            f"All {len(train):,} texts of {train.name} ({train.split}) are of class {train.classes[0]!r}: there is "
            "nothing to learn to tell apart."
        )
    test = load_sentences(options, "test").ordered_as(train.classes)
    return (test, test) if options.evaluate else (train, test)


def load_sentences(options: TrainOptions, split: str, texts: int | None = None) -> LabelledTexts:
    name, share = options.part(split)
    label = options.label_column or _usual_label(options)
    found = find_source(options.data, name, options.root, column=options.column, label=label)
    if not isinstance(found.source, TextSource):
        raise DataError(
            f"{options.data} are pictures, and {NAME} reads text: choose labelled texts, such as --data "
            "pydoc-sentences, or a model of pictures (--recipe quick)."
        )
    if found.source.labels is None:
        raise DataError(
            f"The texts of {options.data} have no classes: give a .csv, .tsv or .jsonl with a column of them "
            "(--label-column), a folder per class, or a named set such as pydoc-sentences."
        )
    cut = TextOptions(unit=DOCUMENTS, column=options.column, label_column=options.label_column, context=options.context)
    choice = Choice(share=share, images=texts, seed=options.seed)
    data = choose_texts(found, cut, choice, source=str(options.data), root=options.root, strict=options.strict)
    assert isinstance(data, LabelledTexts)
    return data


def _usual_label(options: TrainOptions) -> str | None:
    """Where classes stand if nobody says: in the column `label` of a table, in folders; named sets know theirs."""
    path = Path(options.root or "") / Path(options.data).expanduser()
    if not path.exists():
        return None
    if path.is_file():
        return "label" if path.suffix.lower() in ENDINGS else None
    tables = [name for name in os.listdir(path) if Path(name).suffix.lower() in ENDINGS]
    return "label" if tables else FOLDERS


def start_sentences(options: TrainOptions, settings: dict[str, Any], classes: Sequence[str]) -> Model:
    """The encoder of `options.weights` with a head for `classes`, new unless the weights learnt these.

    `source["options"]` and `source["conversions"]` build it again.
    Its attention is converted with its weights in it: where queries become keys, their projection goes. RPC in tuning
    alone, as published, is `rpc:iterations=2,symmetric=false` on weights of softmax attention, and `rpc:iterations=2`
    on those of symmetric attention.
    """
    if options.weights is None:
        raise VitscopeError(
            f"{NAME} is tuned, not trained from nothing: give --weights, the folder of an encoder (config.json, "
            "safetensors, tokenizer) or of a language model's run (`vitscope train --recipe quick-text`)."
        )
    start = str(options.weights)
    if not is_trained(start) and not is_text_model(start):
        raise VitscopeError(
            f"{start} is neither the folder of a text model (config.json, safetensors, tokenizer) nor a run of "
            "`vitscope train`: these are what can be tuned."
        )
    model = open_model(start, use_ema=options.use_ema) if is_trained(start) else open_model(start)
    if not model.row.text:
        raise VitscopeError(f"{start} takes pictures: texts are classified by a text model.")
    if "encoder" in settings:
        raise VitscopeError("encoder is what --weights says: leave --model-options encoder out.")
    told = _told(model)
    before = describe_attention(model.module)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        known = {key: value for key, value in settings.items() if key in ("num_classes", "pool", "dropout")}
        if unknown := sorted(settings.keys() - known.keys()):
            raise VitscopeError(f"{NAME} has no option {unknown[0]!r}: known are pool and dropout.")
        known = {"pool": getattr(model.module, "pool", ""), "dropout": 0.1, **known}
        module = TextClassifier(encoder_of(model.module), **known)
        if options.attention:
            convert_from_description(module, options.attention)
    if not _take_over_head(module, model, classes) and options.evaluate:
        raise WeightsError(
            f"{start} has not learned the classes of {options.data} ({some(classes)}): tune it, and evaluate that run."
        )
    kept = ("run", "weights", "sha256", "folder")
    origin: dict[str, Any] = {key: model.source[key] for key in kept if key in model.source}
    source: dict[str, Any] = {"name": NAME, "started_from": model.name, **origin}
    source["options"] = {**settings, "pool": module.pool, "encoder": told}
    if attention := describe_attention(module):
        source["attention"] = attention
    # what a softmax encoder becomes first, then what this training makes of that
    source["conversions"] = [*before, *(attention if options.attention else [])]
    return Model(module, NAME, model.preprocess, source, model.notes)


def _take_over_head(module: TextClassifier, start: Model, classes: Sequence[str]) -> bool:
    """The head of a classifier that learnt these very classes, in whatever order."""
    head = getattr(start.module, "head", None)
    if not isinstance(start.module, TextClassifier) or not head or set(start.classes or ()) != set(classes):
        return False
    rows = [list(start.classes or ()).index(name) for name in classes]
    with torch.no_grad():
        module.head.weight.copy_(head.weight[rows])
        module.head.bias.copy_(head.bias[rows])
    return True


def _told(model: Model) -> str:
    module = model.module
    if isinstance(module, TextClassifier):
        return str(model.source["options"]["encoder"])
    if hasattr(module, "config"):
        return encoder_json(module)
    return encoder_json(module, str(model.source["name"]), dict(model.source["options"]))
