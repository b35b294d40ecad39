"""Text models of Hugging Face's transformers: from a folder, a .gguf file or a name on the hub to a Model."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

from vitscope.architectures.families import family_of
from vitscope.architectures.layout import derive_layout
from vitscope.architectures.text_rows import HEADS, check_configuration
from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError, first_line
from vitscope.models.model import Model
from vitscope.models.naming import is_hub_name
from vitscope.models.preprocessing import UNTOUCHED
from vitscope.models.text_preprocess import TextPreprocess
from vitscope.models.weights import sha256
from vitscope.outside import check_fetch

_FILES = ["*.json", "*.txt", "*.model", "*.safetensors"]  # of a folder on the hub


def open_text(name: str, weights: str | Path | None, seed: int, options: Mapping[str, Any]) -> Model:
    """A Model of a folder with config.json, weights and tokenizer, of a .gguf file, or of a name on the hub."""
    if unknown := options.keys() - {"length"}:
        raise VitscopeError(
            f"A text model has no option {', '.join(sorted(unknown))}: known is length (tokens per text)."
        )
    transformers = import_transformers()
    place = fetched(name) if is_hub_name(name) else Path(name)
    source: dict[str, Any] = {"name": name if is_hub_name(name) else place.absolute().name, "options": dict(options)}
    how = {"gguf_file": place.name} if place.suffix == ".gguf" else {}
    folder = place.parent if how else place
    if not how:
        _check_no_code(folder / "config.json")
    with _quiet(), _errors(name):
        config = transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True, **how)
    check_configuration(config)
    notes: list[str] = []
    kind = f"AutoModelFor{'CausalLM' if HEADS[config.model_type] == 'causal' else 'MaskedLM'}"
    with _quiet(), _errors(name):
        builder = getattr(transformers, kind)
        if weights is None:
            module, notes = _loaded(builder, folder, how, name)
            source |= _weights_of(place)
        elif str(weights) == "random":
            module = builder.from_config(config, attn_implementation="sdpa", dtype=torch.float32)
            source["weights"] = f"random, seed {seed}"
        else:
            raise VitscopeError(
                f"{name} has its own weights: put {weights} into a folder with its config.json instead."
            )
        tokenizer = transformers.AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True, **how
        )
    if not is_hub_name(name):
        source["folder"] = str(place.absolute())
    return text_model(module, str(source["name"]), tokenizer, source, notes, options.get("length"))


def text_model(
    module: Any,
    name: str,
    tokenizer: Any = None,
    source: Mapping[str, Any] | None = None,
    notes: list[str] | None = None,
    length: int | None = None,
) -> Model:
    """A built module and its tokenizer; without one, only numbers of tokens go in."""
    layout = derive_layout(module)
    if length is not None and not 1 <= int(length) <= layout.tokens:
        raise VitscopeError(f"length={length}: {name} takes texts of 1 to {layout.tokens:,} tokens.")
    preprocess: Any = UNTOUCHED
    if tokenizer is not None:
        preprocess = TextPreprocess(tokenizer, int(length or layout.tokens), f"tokenizer of {name}")
        preprocess.check_vocabulary(module.get_input_embeddings().num_embeddings, name)
    return Model(module, name, preprocess, source, notes or [])


def import_transformers() -> ModuleType:
    try:
        import transformers
    except ImportError as error:
        raise VitscopeError(
            f"Text models need transformers, which cannot be imported ({error}): pip install 'vitscope[text]'"
        ) from error
    return transformers


def _loaded(builder: Any, folder: Path, how: Mapping[str, Any], name: str) -> tuple[Any, list[str]]:
    """The module with its weights in float32; without its head where the checkpoint has none."""
    if not how:
        how = {"use_safetensors": bool(list(folder.glob("*.safetensors")))}
    module, info = builder.from_pretrained(
        folder,
        attn_implementation="sdpa",
        dtype=torch.float32,
        output_loading_info=True,
        trust_remote_code=False,
        local_files_only=True,
        weights_only=True,
        **how,
    )
    base = f"{module.base_model_prefix}."
    missing = sorted(info["missing_keys"])
    if inside := [key for key in missing if key.startswith(base)]:
        raise WeightsError(
            f"The weights of {name} are of another architecture: {len(inside)} tensors are missing "
            f"({', '.join(inside[:6])}{', ...' if len(inside) > 6 else ''})."
        )
    notes = []
    if missing:
        module = module.base_model
        notes.append(
            f"The checkpoint has no vocabulary head ({missing[0]} is missing): the model is opened without one."
        )
    if unused := sorted(info["unexpected_keys"]):
        notes.append(f"{len(unused)} tensors of the checkpoint are not used ({', '.join(unused[:3])}, ...).")
    family_of(module)
    return module, notes


def _check_no_code(config: Path) -> None:
    """Refuse a model that brings its own code: it is never run."""
    try:
        content = json.loads(config.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise VitscopeError(f"{config} cannot be read ({type(error).__name__}: {error}).") from error
    if isinstance(content, dict) and content.get("auto_map"):
        raise UnsupportedModelError(
            f"{config.parent.name} wants code of its own to be run (auto_map in its config.json, trust_remote_code): "
            "vitscope never does that. If transformers' own class for its model_type is the same model, open a copy "
            "of the folder without auto_map."
        )


def _weights_of(place: Path) -> dict[str, str]:
    """What a run records of the weights: the file, or how many, and a hash of all."""
    files = [place]
    if place.is_dir():
        files = sorted(place.glob("*.safetensors")) or sorted(place.glob("pytorch_model*.bin"))
    digests = [sha256(file) for file in files]
    if len(files) == 1:
        return {"weights": files[0].name, "sha256": digests[0]}
    return {"weights": f"{len(files)} files", "sha256": hashlib.sha256("".join(digests).encode()).hexdigest()}


def fetched(name: str) -> Path:
    """The folder of a name on the hub: what is on this machine already, or a download."""
    import_transformers()
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    with suppress(LocalEntryNotFoundError):
        found = Path(snapshot_download(name, allow_patterns=_FILES, local_files_only=True))
        if list(found.glob("*.safetensors")) or list(found.glob("pytorch_model*.bin")):
            return found
    check_fetch(name, f"the text model {name}", WeightsError)
    try:
        found = Path(snapshot_download(name, allow_patterns=_FILES))
        if not list(found.glob("*.safetensors")):
            found = Path(snapshot_download(name, allow_patterns=[*_FILES, "pytorch_model*.bin"]))
        return found
    except Exception as error:  # no net, no such name, no access: a download has many ways to fail
        raise WeightsError(
            f"{name} could not be fetched from the hub ({type(error).__name__}: {first_line(error)}). Where there is "
            "no net, give a folder with its config.json, safetensors and tokenizer: open_model(FOLDER)."
        ) from error


@contextmanager
def _errors(name: str) -> Iterator[None]:
    """What transformers raises, in one line."""
    try:
        yield
    except VitscopeError:
        raise
    except Exception as error:  # files that are missing, damaged, or of another kind fail anywhere in it
        hint = " A .gguf file needs the package gguf: pip install gguf" if name.endswith(".gguf") else ""
        raise WeightsError(
            f"{name} cannot be opened as a text model ({type(error).__name__}: {first_line(error)}). Expected "
            f"config.json, weights (safetensors) and a tokenizer (tokenizer.json).{hint}"
        ) from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Without transformers' own progress bars and warnings: what matters of them becomes a note."""
    from transformers.utils import logging

    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
