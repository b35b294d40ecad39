"""What a run keeps of its request: the shape of its configuration, and the options that lead to it again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitscope.data.registry import find_dataset
from vitscope.errors import VitscopeError
from vitscope.models.naming import class_vector_options
from vitscope.models.preprocess_words import words_of
from vitscope.runs.shape import check_saved

# not said of pictures
OF_TEXTS = ("unit", "min_chars", "column", "label_column", "context", "stride", "joined", "bos", "windows")

# the configuration of a run, as the engine saves it
IMAGES = {
    "name?": str, "split": (str, None), "source": str, "root": (str, None), "images?": (int, None), "seed?": int,
    "per_class?": (int, None), "list_file?": (str, None), "every?": int, "share": float, "masks": bool, "n?": int,
    "num_classes?": int, "fingerprint?": str, "mask_decoding?": str, "mask_rule?": str, "own?": {},
    "first?": int, "documents?": int, "unit?": str, "min_chars?": int, "column?": str, "label_column?": str,
    "context?": int, "stride?": int, "joined?": bool, "bos?": bool, "windows?": int, "texts?": (int, None),
    "subset?": int, "labels?": str,
}  # fmt: skip
MODEL = {
    "name": str, "options?": {}, "weights?": str, "sha256?": str, "entry?": str, "path?": str,
    "run?": str, "run_path?": str, "folder?": str, "attention?": ([{"name": str}], str, None),
    "class_vectors?": {"file": str, "path?": str, "sha256?": str, "names?": str, "scale": float, "bias": float},
}  # fmt: skip
PREPROCESS = dict.fromkeys(
    (
        "input_size?", "mean?", "std?", "interpolation?", "crop_pct?", "crop_mode?", "source?",  # of pictures
        "tokenizer?", "vocabulary?", "length?",  # of texts
    ),
    Any,
)  # fmt: skip
ANALYZED = {
    "label?": str, "model": MODEL, "weights_digest?": str, "edits?": {}, "preprocess?": PREPROCESS, "data": IMAGES,
    "task?": {}, "analyses": {str: ({}, None)}, "batch_size": int, "seed": int, "gallery": int, "control?": str,
    "modules?": [str],
}  # fmt: skip


def options_of_run(config: Mapping[str, Any], directory: Path | None) -> dict[str, Any]:
    """The options of models, images and engine that lead to the configuration of a run."""
    check_saved(config, ANALYZED)
    if config.get("edits"):
        raise VitscopeError(
            f"The model was edited ({', '.join(config['edits'])}) by functions that a configuration cannot hold: make "
            "this run again in Python, inside `model.edits(...)`."
        )

    model, data = config["model"], config["data"]
    weights = model.get("path") or ("random" if str(model.get("weights", "")).startswith("random") else None)
    return {
        "models": [model.get("run_path") or model.get("folder") or model["name"]],
        "weights": [weights] if weights else [],
        "use_ema": "ema" in model.get("entry", "ema"),  # a file without averaged weights has one answer
        "model_options": {} if "run_path" in model else model.get("options", {}),
        "attention": None if "run_path" in model else attention_text(model.get("attention", [])),
        **class_vector_options(model.get("class_vectors")),
        "preprocess": words_of(str((config.get("preprocess") or {}).get("source", ""))),
        "data": place_of(data["source"], directory),
        "root": place_of(data["root"], directory),
        "labels": place_of(data.get("labels"), directory),
        "images": data.get("images", data.get("texts")),
        "list": place_of(data.get("list_file"), directory),
        "every": data.get("every", 1),
        **{name: data[name] for name in ("first", *OF_TEXTS) if name in data},
        **{name: data.get(name) for name in ("split", "per_class", "share", "masks", "mask_decoding")},
        "mask_rule": data.get("mask_rule", "centre"),
        **{name: config[name] for name in ("seed", "batch_size", "gallery")},
        "control": config.get("control"),
    }


def attention_text(entries: Sequence[Mapping[str, Any]]) -> str | None:
    """[{'name': 'rpc', 'layers': '0', 'lambda': 4.0}] -> 'rpc:layers=0,lambda=4.0'"""
    texts = [
        f"{entry['name']}:" + ",".join(f"{key}={value}" for key, value in entry.items() if key != "name")
        for entry in entries
    ]
    return ";".join(texts) or None


def place_of(path: str | None, directory: Path | None) -> str | None:
    """A relative path as it was meant where the run was started; names of data sets stay names."""
    if not path or directory is None or directory == Path.cwd() or not (directory / path).exists():
        return path

    return path if find_dataset(path) else str(directory / path)
