"""A folder in which the examples of the pages come true: small pictures, random weights, a model of digits, runs."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

import vitscope

TINY = "vit_tiny_patch16_224"
WEIGHTS = ("tiny.safetensors", "weights.safetensors", f"{TINY}.safetensors")
SYNSETS = ("n01440764", "n01443537")  # two classes of ImageNet
TEXT_MODELS = ("path/to/gpt2", "path/to/stories260K")
RUNS: dict[str, Callable[[Path], Any]] = {
    "runs/digits": lambda out: _train(out, "mnist5k"),
    "runs/demo/digits-vit": lambda out: _train(out, "mnist5k"),
    "runs/digits-lens": lambda out: _refine(out),
    "runs/pydoc": lambda out: _train(out, "pydoc", "quick-text", depth=1, embed_dim=16),
    "runs/tiny": lambda out: vitscope.analyze(
        "runs/digits", "mnist5k", ["accuracy", "attention"], out, images=20, save=["blocks.*.hook_resid_post"]
    ),
}


def _train(out: Path, data: str, recipe: str = "quick", **sizes: Any) -> Any:
    """One epoch."""
    from vitscope.training.recipes import recipe_options

    options = recipe_options(recipe, out=str(out), data=data, epochs=1, warmup_epochs=0.0, progress=False)
    return vitscope.train(replace(options, model_options={**options.model_options, **sizes}))


def _refine(out: Path) -> Any:
    """A learnt lens of both kinds."""
    half = str(out) + "-half"
    how = {"data": "mnist5k", "share": 0.1, "epochs": 1, "warmup_epochs": 0.0, "batch_size": 40, "progress": False}
    vitscope.train(vitscope.TrainOptions(out=half, refine="runs/digits", **how))
    return vitscope.train(vitscope.TrainOptions(out=str(out), refine=half, refine_kind="linear", **how))


def _text_model(folder: Path) -> None:
    """GPT-2 with four small blocks and ten words."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    words = ["<end>", "once", "upon", "a", "time", "there", "was", "an", "old", "lens"]
    built = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="<end>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    sizes = {"vocab_size": len(words), "n_embd": 16, "n_layer": 4, "n_head": 4, "n_positions": 16}
    torch.manual_seed(0)
    GPT2LMHeadModel(GPT2Config(**sizes, bos_token_id=0, eos_token_id=0)).save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<end>", unk_token="<end>").save_pretrained(folder)


def lay(folder: Path) -> None:
    """Weights and pictures. Runs are made when a page asks for them."""
    module = vitscope.open_model(TINY, "random").module
    for name in WEIGHTS:
        save_file(module.state_dict(), folder / name)
    for name in TEXT_MODELS:
        _text_model(folder / name)
    digits = vitscope.load_data("mnist5k", "test", images=40)
    places = [(f"path/to/imagenet/val/{SYNSETS[i % 2]}", i) for i in range(4)]
    places += [(f"path/to/pictures/{'test' if i < 10 else 'train'}/{'odd' if i % 2 else 'even'}", i) for i in range(40)]
    for place, i in places:
        (folder / place).mkdir(parents=True, exist_ok=True)
        digits[i].image.convert("RGB").resize((64, 64)).save(folder / place / f"{i}.png")


def spread(desk: Path, page: Path) -> dict[str, Any]:
    """A page's own folder with the same things in it, and the names that its blocks may use without saying so."""
    for thing in desk.iterdir():
        if thing.name != "runs":
            (page / thing.name).symlink_to(thing)

    def have(run: str) -> None:
        """A run of the desk, which makes it on first use; the page gets a copy, because it may go on with it."""
        if not (desk / run).is_dir():
            if run in ("runs/tiny", "runs/digits-lens") and not (page / "runs/digits").is_dir():
                have("runs/digits")  # which they are made of
            RUNS[run](desk / run)
        shutil.copytree(desk / run, page / run)

    model = vitscope.open_model(TINY, "random")
    data = vitscope.load_data(str(desk / "path/to/imagenet"), "val")
    images = next(data.batches(model.preprocess, batch_size=2)).images
    return {"vitscope": vitscope, "torch": torch, "model": model, "data": data, "images": images, "have": have}
