"""What a training starts from: the data, the model, its optimiser and schedule. Bad input is refused here, early."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import ASGD, Optimizer

from vitscope.analyses.one_pass import evaluating
from vitscope.data import Data, load_data, steps_per_epoch
from vitscope.data.text import TextData
from vitscope.errors import DataError, VitscopeError, suggest
from vitscope.models import Model, open_model
from vitscope.models.preprocess_words import preprocess_in_words
from vitscope.models.preprocessing import UNTOUCHED
from vitscope.registry import outside_modules
from vitscope.tasks import Task, task_of
from vitscope.tasks.classification import some
from vitscope.training.options import TrainOptions
from vitscope.training.parts import rated
from vitscope.training.refinement import describe_frozen, open_frozen
from vitscope.training.sentences import learns_sentences, load_sentences, open_sentences, start_sentences
from vitscope.training.start import start_from
from vitscope.training.texts import held_out, open_texts, reads_text, window_of


@dataclass(frozen=True)
class TrainData:
    """What is learnt from, and what is held out."""

    train: Data
    test: Data

    @property
    def task(self) -> Task:
        return task_of(self.train)


def open_data(options: TrainOptions, processes: int = 1) -> TrainData:
    """Both splits, checked: fit for their task, and large enough for one step."""
    if learns_sentences(options):
        return _checked(TrainData(*open_sentences(options)), options, processes)
    if reads_text(options.model):
        return _checked(TrainData(*open_texts(options)), options, processes)
    test = _load(options, "test", masks=False, strict=options.strict)  # nothing here reads masks: it costs time
    if isinstance(test, TextData):
        raise DataError(
            f"{options.data} are texts, and {options.model} takes pictures: choose --model lm-small or symlm (--recipe "
            "quick-text), or pictures, such as --data mnist5k."
        )
    train = test if options.evaluate else _load(options, "train", masks=False, strict=options.strict)
    return _checked(TrainData(train, test), options, processes)


def _checked(opened: TrainData, options: TrainOptions, processes: int) -> TrainData:
    train = opened.train
    opened.task.check_learning(train, opened.test)
    items = opened.task.words.items
    if options.evaluate:
        return opened
    if options.batch_size > len(train):
        raise DataError(
            f"A batch of {options.batch_size:,} {items} is larger than the {len(train):,} training {items}. "
            f"Choose batch_size={max(1, len(train) // 10)} or less."
        )
    if options.batch_size % (parts := processes * options.accumulate):
        pieces = f" in {options.accumulate} pieces each" if options.accumulate > 1 else ""
        raise VitscopeError(
            f"batch_size={options.batch_size} counts the {items} of all {processes} processes together{pieces} and "
            f"must be a multiple of {parts}, e.g. {max(1, round(options.batch_size / parts)) * parts}."
        )
    return opened


def probe_data(options: TrainOptions, split: str, model: Model | None = None) -> Data:
    """The images that probes see, the same every time: spread over the classes, with masks where the data has them.

    Of texts: the first windows.
    """
    images = None if options.probe_images == "all" else options.probe_images
    if learns_sentences(options):
        known = model.classes if model is not None else None
        chosen = load_sentences(options, split, images)
        return chosen.ordered_as(known) if known else chosen
    if model is not None and model.row.text:
        return held_out(options, split, model.preprocess, window_of(options), images)
    return _load(options, split, images=images, mask_decoding=options.mask_decoding)


def _load(options: TrainOptions, split: str, **choice: Any) -> Data:
    name, share = options.part(split)
    data = options.data if options.inat_category == "name" else f"{options.data}-{options.inat_category}"
    if options.labels is not None:
        choice["labels"] = options.labels
    return load_data(data, name, root=options.root, share=share, seed=options.seed, **choice)


def build_model(options: TrainOptions, data: Data) -> Model:
    """A new model with random weights from the seed, or with those of the options; its classes are those of the data.

    A new model learns from whole pictures, centred at grey: the crop and the mean/std that timm keeps for a name belong
    to weights that are not used here. Given weights keep theirs.
    """
    if options.refine:
        return open_frozen(options, data)
    task = task_of(data)
    settings = {**task.model_options(data), **options.model_options}
    if options.in_chans is not None:
        settings["in_chans"] = options.in_chans
    if data.num_classes and settings["num_classes"] != data.num_classes:
        raise VitscopeError(
            f"num_classes={settings['num_classes']} was asked for, but {data.name} has {data.num_classes} classes "
            f"({some(data.classes)}). Leave num_classes out: it follows the data."
        )
    if settings.get("weight_init") == "skip":
        raise VitscopeError(
            "weight_init='skip' leaves class token and positions as the memory happens to be: leave it out. With "
            "init='torch' (--init torch) linear layers start as PyTorch draws them."
        )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tags disagree on mean/std, of which none is used
        if learns_sentences(options):
            model = start_sentences(options, settings, data.classes)
            settings = model.source["options"]
        elif options.weights is None:
            attention = options.attention or None
            model = open_model(options.model, "random", seed=options.seed, attention=attention, **settings)
            if options.init == "torch":
                _start_as_torch(model.module, options.seed)
        else:
            model = start_from(options, settings, data.classes)
    recipe = model.preprocess
    if model.row.text:
        recipe = getattr(data, "preprocess", recipe)  # streams and windows have one
        module: Any = model.module
        recipe.check_vocabulary(module.get_input_embeddings().num_embeddings, options.model)
    elif options.weights is None and options.preprocess != "model" and recipe != UNTOUCHED:
        grey = (0.5,) * recipe.input_size[0]
        recipe = replace(recipe, mean=grey, std=grey, crop_pct=1.0, crop_mode="center")
        if options.preprocess != "whole":
            recipe = preprocess_in_words(recipe, options.preprocess)
        recipe = replace(recipe, source="trained with vitscope")
    if not model.row.text and recipe != UNTOUCHED:
        recipe = task.preprocess(recipe)
    source = {**model.source, "options": settings}
    notes = [] if options.weights is None else model.notes  # of a new model: on mean/std that are not used
    built = Model(model.module, options.label or options.model, recipe, source, notes, list(data.classes))
    if reads_text(options.model):  # an attention that would feel later tokens says so now, before anything is written
        with evaluating(built.module), torch.no_grad():
            built(torch.zeros(1, 2, dtype=torch.int64))
    return built


def _start_as_torch(module: nn.Module, seed: int) -> None:
    """Linear layers uniform within 1 / sqrt(inputs), class token and positions normal with deviation 0.02.

    So start the models of the RPC-Attention study, whose program names timm's initialiser and never calls it.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for part in module.modules():
            if isinstance(part, nn.Linear):
                part.reset_parameters()
        for name in ("pos_embed", "cls_token"):
            if isinstance(start := getattr(module, name, None), nn.Parameter):
                nn.init.trunc_normal_(start, std=0.02)


def what_is_lost(model: Model, data: Any) -> str | None:
    """Colours that the model does not take, said aloud: a recipe for grey digits would train on a grey CIFAR-10."""
    if model.row.text or model.preprocess.input_size[0] != 1:
        return None
    try:
        picture = data.read(0, masks=False).image
    except DataError:  # what cannot be read is listed while it trains
        return None
    if picture.mode in ("1", "L", "LA", "I", "I;16", "F"):
        return None
    return (
        f"The pictures of {data.name} are in colour, and the model takes grey: their colours are left out. With "
        "in_chans=3 it learns from them (--in-chans 3, or --model-options in_chans=3)."
    )


def what_pieces_change(module: nn.Module, pieces: int) -> str | None:
    """Batch norms, said aloud: they take means over a piece of a batch, so that pieces do not add up to the whole."""
    if pieces < 2 or not any(isinstance(part, _BatchNorm) for part in module.modules()):
        return None
    return (
        f"Batch norms see 1/{pieces} of a batch at a time (accumulate times processes): this is not what the "
        "undivided batch would give. It is how such models are trained on several devices."
    )


def describe_model(options: TrainOptions, model: Model) -> dict[str, Any]:
    """model.json: what `open_model(run folder)` needs to build the model again."""
    if options.refine:
        return describe_frozen(model)
    return {
        "name": options.model,
        "kwargs": model.source["options"],
        "attention": model.source.get("conversions", options.attention) or None,
        **({"modules": modules} if (modules := outside_modules([options.attention, options.model])) else {}),
        "preprocess": model.preprocess.to_dict(),
        "classes": model.classes,
    }


def resolved(options: TrainOptions, data: TrainData, model: Model, device: str) -> dict[str, Any]:
    """config.yaml: everything that decides the weights, and the device."""
    parameters = sum(p.numel() for p in model.module.parameters())
    return {
        "label": model.name,
        "model": {**model.source, "parameters": parameters},
        "preprocess": model.preprocess.to_dict(),
        "data": {"name": data.train.name, "train": data.train.describe(), "test": data.test.describe()},
        **({"task": described} if (described := data.task.describe()) else {}),
        "steps_per_epoch": steps_per_epoch(len(data.train), options.batch_size),
        "device": device,
        "options": options.to_config(),
    }


def build_optimizer(options: TrainOptions, module: nn.Module) -> Optimizer:
    from timm.optim import create_optimizer_v2, list_optimizers

    known = [*map(str, list_optimizers()), "asgd"]
    if options.optimizer not in known:
        raise VitscopeError(f"timm has no optimizer {options.optimizer!r}.{suggest(options.optimizer, known)}")
    settings = {"lr": options.peak_lr, "weight_decay": options.weight_decay, **options.optimizer_options}
    try:
        if options.optimizer == "asgd":
            return _asgd(module, **settings)
        learns: Any = rated(module, options.lr_scale, options.weight_decay) if options.lr_scale else module
        return create_optimizer_v2(learns, opt=options.optimizer, **settings)
    except (ImportError, AssertionError, RuntimeError, TypeError, ValueError) as error:  # needs a GPU, or a package
        raise VitscopeError(f"The optimizer {options.optimizer!r} cannot be used here: {error}") from error


def _asgd(module: nn.Module, weight_decay: float, **settings: Any) -> Optimizer:
    """PyTorch's averaged SGD, which the separation study varies and timm does not have; weights decay as in timm."""
    from timm.optim import param_groups_weight_decay

    weights = param_groups_weight_decay(module, weight_decay) if weight_decay else module.parameters()
    return ASGD(weights, **settings)


class Average:
    """timm's moving average of the weights, and the model that has them."""

    def __init__(self, model: Model, decay: float) -> None:
        from timm.utils import ModelEmaV3

        self._ema = ModelEmaV3(model.module, decay=decay)
        self.model = Model(self._ema.module, f"{model.name} (averaged)", model.preprocess, model.source)

    def update(self, module: nn.Module) -> None:
        self._ema.update(module)


def build_average(options: TrainOptions, model: Model) -> Average | None:
    return Average(model, options.ema) if options.ema else None
