"""Models and weights as people name them, looked up before PyTorch is imported."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from vitscope.errors import VitscopeError, WeightsError
from vitscope.models.catalog import read_table
from vitscope.outside import is_address
from vitscope.registry import BUILDERS

B = TypeVar("B", bound=Callable[..., Any])


def register_model(name: str) -> Callable[[B], B]:
    """Function decorator: what it builds from options is a model of that name, for `open_model` and `train`."""
    return lambda function: BUILDERS.add(name, function)


def describe_pictures(module: Any, name: str, size: tuple[int, int, int], **more: Any) -> None:
    """What timm's models say of themselves, `pretrained_cfg`: pictures of `size` (channels, height, width), grey ones
    around 0.5."""
    grey = (0.5,) * size[0]
    told = {"architecture": name, "input_size": size, "num_classes": module.num_classes, "mean": grey, "std": grey}
    told |= {"interpolation": "bicubic", "crop_pct": 1.0, "classifier": "head", **more}
    module.pretrained_cfg = module.default_cfg = told


def is_own(name: str) -> bool:
    """Is it built here, or by a function at `package.module:function`, and not by timm?"""
    return is_address(name) or name in BUILDERS.names()


def is_trained(folder: str | Path) -> bool:
    """Is it the run folder of a training? False, not an error, for a name too long for a file."""
    return os.path.isfile(Path(folder) / "model.json")


def is_text_model(name: str | Path) -> bool:
    """Is it a folder of a Hugging Face model, a .gguf file, or a name on the hub such as `org/model`?"""
    if str(name).endswith(".gguf") and os.path.isfile(name):
        return True
    try:
        content = json.loads((Path(name) / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return is_hub_name(name)
    return isinstance(content, dict) and "model_type" in content


def is_hub_name(name: str | Path) -> bool:
    """`org/model`, where no such file or folder lies here. No name of timm has a stroke."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", str(name)) is not None and not os.path.exists(name)


def check_model_name(name: str) -> None:
    """Raise at a model that does not exist. A name that the table does not have is refused only after asking timm."""
    if is_trained(name) or is_own(name) or is_text_model(name) or any(row.name == name for row in read_table() or ()):
        return
    from vitscope.models.open import check_name

    check_name(name)


def check_class_files(vectors: str | None, names: str | None) -> None:
    """Class vectors and their names: is there a file?"""
    if names is not None and vectors is None:
        raise VitscopeError("class_names go with class_vectors: give --class-vectors FILE.npy, too.")
    for file, kind in ((vectors, "class vectors (.npy)"), (names, "class names, one per line")):
        if file is not None and not os.path.isfile(file):
            raise VitscopeError(f"No file at {file}: expected {kind}.")


def class_vector_options(saved: Mapping[str, Any] | None) -> dict[str, Any]:
    """The options behind the class vectors that a run has saved."""
    if saved is None:
        return {}
    if "path" not in saved:
        raise VitscopeError("The class vectors of this run were an array in Python: make it again there.")
    found = {"class_vectors": saved["path"], "class_names": saved.get("names")}
    return found | {"logit_scale": saved["scale"], "logit_bias": saved["bias"]}


def check_weights_file(path: str | Path) -> None:
    if not os.path.isfile(path):
        raise WeightsError(f"No weights at {path}: expected a .safetensors or .pth file.")
