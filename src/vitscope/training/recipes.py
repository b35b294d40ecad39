"""Recipes: options that belong together, with what they cost and what they reach. A recipe is data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from vitscope.errors import VitscopeError, suggest
from vitscope.training.options import TrainOptions


@dataclass(frozen=True)
class Recipe:
    """Changes to the defaults of TrainOptions."""

    about: str  # one line: for what
    cost: str  # measured, and where
    reaches: str  # measured, on what
    options: Mapping[str, Any]


_ON_TEXT: dict[str, Any] = {"test_split": "val", "weight_decay": 0.01, "min_lr": 1e-4}

_DEIT: dict[str, Any] = {  # how DeiT changes pictures and labels, beside their crop
    "randaugment": "rand-m9-mstd0.5-inc1",
    "erase": 0.25,
    "mixup": 0.8,
    "cutmix": 1.0,
    "smoothing": 0.1,
}
# what DeiT's settings for ImageNet-1K and those of FAN share
_ON_IMAGENET: dict[str, Any] = {
    **_DEIT,
    "data": "imagenet",
    "test_split": "val",
    "augment": "resized",
    "preprocess": "model",
    "epochs": 300,
    "optimizer": "adamw",
    "weight_decay": 0.05,
    "schedule": "cosine",
    "warmup_epochs": 5.0,
    "warmup_lr": 1e-6,
    "clip_grad": None,  # DeiT's base model has 1.0
    "workers": 8,
}

RECIPES: dict[str, Recipe] = {
    "quick": Recipe(
        about="a small ViT on 4,000 digits, as in the demo",
        cost="about a minute on one CPU core",
        reaches="95 % of 1,000 held-out digits (seed 0)",
        options={
            "data": "mnist5k",
            "augment": "digits",
            "model": "vit_tiny_patch16_224",
            "model_options": {
                "img_size": 28,
                "patch_size": 7,  # 16 tokens learn faster than 49: 96.1 % against 92.3 %, in half of the time
                "in_chans": 1,
                "embed_dim": 64,
                "depth": 4,
                "num_heads": 8,  # of 8 dimensions: with 16, the values of 17 tokens span all that there is to span
                "mlp_ratio": 2.0,
                "weight_init": "jax",  # timm's default (0.02) is made for wider models: too small for 64 channels
            },
            # these were chosen on 800 of the training digits; the 1,000 held-out ones had no say
            "epochs": 12,
            "batch_size": 40,
            "optimizer": "nadamw",
            "lr": 3e-3,
            "warmup_epochs": 1.5,
        },
    ),
    "cifar": Recipe(
        about="a ViT of 9 blocks on CIFAR-10 (or cifar100), from scratch, with the augmentation of DeiT",
        cost="not measured here: made for one GPU (4.0 million parameters, 1.6e16 operations in all)",
        reaches="not measured here",
        options={
            **_DEIT,
            "data": "cifar10",
            "augment": "crop",
            "model": "vit_tiny_patch16_224",
            "model_options": {"img_size": 32, "patch_size": 4, "depth": 9, "drop_path_rate": 0.1, "weight_init": "jax"},
            "epochs": 200,
            "batch_size": 128,
            "lr": 1e-3,
            "warmup_epochs": 10.0,
        },
    ),
    "deit": Recipe(
        about="the settings of DeiT on ImageNet-1K (Touvron et al. 2021), which RPC-SymViT was trained with",
        cost="not measured here: 300 epochs of 1.28 million pictures (5.7 million parameters, 2.9e18 operations in "
        "all); the study used 4 A100 GPUs",
        reaches="not measured here; the study's figures are in its paper",
        options={
            **_ON_IMAGENET,
            "repeats": 3,
            "model": "deit_tiny_patch16_224",
            "model_options": {"drop_path_rate": 0.1},
            "batch_size": 1024,  # 256 on each of 4 GPUs
            "lr": 5e-4,
            "lr_batch": 512,
            "min_lr": 1e-5,
            "ema": 0.99996,
        },
    ),
    "fan": Recipe(
        about="FAN-Tiny on ImageNet-1K (Zhou et al. 2022), as the RPC-Attention study trains it",
        cost="not measured here: 300 epochs of 1.28 million pictures (7.3 million parameters, 3.4e18 operations in "
        "all); the study used 4 GPUs",
        reaches="not measured here; 79.2 % of the validation pictures are reported for softmax attention",
        options={
            **_ON_IMAGENET,
            "train_interpolation": "random",
            "model": "fan_tiny_12_p16_224",
            "batch_size": 512,  # 128 on each of 4 GPUs
            "lr": 2e-3,
            "min_lr": 1e-6,
            "ema": 0.99992,
        },
    ),
    "small": Recipe(
        about="the separation study: a post-norm ViT on Fashion-MNIST, no augmentation, a constant rate",
        cost="75 seconds per epoch and 45 per probe of all 70,000 pictures, on one core of a busy CPU",
        reaches="83.1 % of the 10,000 test pictures after 1 epoch (three seeds); 150 epochs not measured",
        options={
            "data": "fashion-mnist",
            "model": "small",
            "model_options": {"norm_eps": 1e-5, "dropouts": 1, "attention_init": "xavier"},
            "preprocess": "separation",
            "epochs": 150,
            "batch_size": 64,
            "optimizer": "adam",
            "lr": 1e-3,
            "weight_decay": 0.0,
            "schedule": "constant",
            "warmup_epochs": 0.0,
            "clip_grad": None,
            "probe_images": "all",
        },
    ),
    "quick-text": Recipe(
        about="a small language model on the help topics of Python, in 1,000 byte pairs",
        cost="47 seconds of one CPU core",
        reaches="perplexity 42 per token on a held-out tenth of the topics, 160 after the first epoch (seed 0)",
        options={
            **_ON_TEXT,
            "data": "pydoc",
            "model": "lm-small",
            "model_options": {"depth": 3, "embed_dim": 96},
            "vocabulary": "bpe:1000",
            "epochs": 8,
            "batch_size": 8,
            "lr": 3e-3,
            "warmup_epochs": 0.5,
        },
    ),
    "lm-small": Recipe(
        about="a decoder of 4 blocks on texts of a million words or so, with 4,000 byte pairs",
        cost="132 seconds of one CPU core on pydoc",
        reaches="perplexity 163 per token on pydoc's held-out tenth (seed 0, with narrower first weights), a text too "
        "short for it",
        options={
            **_ON_TEXT,
            "data": "pydoc",
            "model": "lm-small",
            "model_options": {"dropout": 0.1},
            "vocabulary": "bpe:4000",
            "epochs": 10,
            "batch_size": 32,
            "lr": 2e-3,
            "weight_decay": 0.1,
            "warmup_steps": 100,
        },
    ),
    "sentences": Recipe(
        about="an encoder or a language model tuned on labelled texts: give --weights, and --data",
        cost="19 seconds of one CPU core for a model of `quick-text` (4 epochs at 1e-3)",
        reaches="70 % of 209 held-out sentences in eight topics, from such a model (mean of three seeds)",
        options={
            "data": "pydoc-sentences",
            "model": "text-classifier",
            "context": 64,
            "epochs": 3,
            "batch_size": 16,
            "optimizer": "adamw",
            "lr": 1e-4,
            "weight_decay": 0.01,
            "warmup_epochs": 0.3,
            "min_lr": 1e-6,
        },
    ),
    "symlm": Recipe(
        about="the published language model of WikiText-103, which RPC attention was tried in; its 500,000 steps are "
        "119 epochs (499,919)",
        cost="not measured here: made for a GPU (44 million weights, batches of 96 x 256 words)",
        reaches="not measured here; for softmax about 33 on `val` and 34 on `test` are reported, which was not checked",
        options={
            "data": "wikitext-103",
            "test_split": "val",
            "model": "symlm",
            "vocabulary": "words",
            "context": 256,
            "epochs": 119,
            "batch_size": 96,
            "optimizer": "adam",
            "lr": 2.5e-4,
            "weight_decay": 0.0,
            "schedule": "cosine",
            "warmup_steps": 2000,
            "warmup_lr": 0.0,
            "min_lr": 0.0,
            "clip_grad": 0.25,
        },
    ),
    "segmenter": Recipe(
        about="the settings of Segmenter on ADE20K (Strudel et al. 2021), in about 160,000 steps; --weights is a ViT "
        "that learnt ImageNet",
        cost="not measured here: made for a GPU (batches of 8 pieces of 512 x 512)",
        reaches="not measured here; 38.1 % mean IoU is reported for this size, which was not checked",
        options={
            "data": "ade20k",
            "test_split": "val",
            "augment": "joint",
            "model": "segmenter",
            "model_options": {
                "backbone": "vit_tiny_patch16_384",
                "decoder": "mask",
                "image_size": 512,
                "window": 512,
                "stride": 512,
                "drop_path_rate": 0.1,
            },
            "preprocess": "model",
            "epochs": 64,
            "batch_size": 8,
            "optimizer": "sgd",
            "optimizer_options": {"momentum": 0.9},
            "lr": 1e-3,
            "weight_decay": 0.0,
            "schedule": "poly",
            "poly_power": 0.9,
            "warmup_epochs": 0.0,
            "min_lr": 1e-5,
            "clip_grad": None,
            "workers": 8,
        },
    ),
    "segmenter-small": Recipe(
        about="a small segmenter on 4,000 scenes of digits, from scratch",
        cost="3 min 36 s of one CPU core, beside other work",
        reaches="35 % mean IoU on 500 held-out scenes (seed 0)",
        options={
            "data": "digit-scenes",  # in which places and sizes are drawn already
            "model": "segmenter",
            "model_options": {
                "backbone": "vit_tiny_patch16_224",
                "decoder": "linear",
                "image_size": 56,
                "patch_size": 7,  # 64 tokens: about a third of the time of the 196 that patches of 4 give
                "embed_dim": 64,
                "depth": 4,
                "num_heads": 4,
                "mlp_ratio": 2.0,
                "weight_init": "jax",
            },
            "epochs": 8,
            "batch_size": 16,  # steps are what it lacks: it first tells ink from background, and digits much later
            "optimizer": "nadamw",
            "lr": 2e-3,
            "warmup_epochs": 0.5,
        },
    ),
}

RECIPES["quick-scenes"] = Recipe(
    about="the recipe segmenter-small with fewer passes, as in the demo",
    cost="51 seconds of one CPU core",
    reaches="29 % mean IoU on 500 held-out scenes (seed 0, one thread)",
    options={**RECIPES["segmenter-small"].options, "epochs": 5},
)


def list_recipes() -> list[str]:
    return sorted(RECIPES)


def recipe_options(name: str, **changes: Any) -> TrainOptions:
    """The options of a recipe, with `changes`; `model_options` are changed one by one."""
    if name not in RECIPES:
        raise VitscopeError(f"There is no recipe {name!r}.{suggest(name, RECIPES)} Known: {', '.join(RECIPES)}.")
    options = dict(RECIPES[name].options)
    if "model_options" in changes:
        changes["model_options"] = {**options.get("model_options", {}), **changes["model_options"]}
    return TrainOptions.from_config(options, **changes)


def options_of(given: TrainOptions | str | None, changes: Mapping[str, Any]) -> TrainOptions:
    """What `train` was called with: options, the name of a recipe or nothing, and single options that differ."""
    if isinstance(given, str):
        return recipe_options(given, **changes)
    if given is not None and not isinstance(given, TrainOptions):
        raise VitscopeError(
            f"train: expected TrainOptions(...) or the name of a recipe, such as 'quick', not {given!r}."
        )
    known = {} if given is None else {f.name: getattr(given, f.name) for f in fields(given)}
    return TrainOptions.from_config(known, **changes)
