"""From a name and options to a module: vitscope's own architectures first, then timm's.

This is where timm is called, so this is where its answers become errors that say something, and where options that
would fetch, read or unpickle a file are refused: a name and options may come from a folder of someone else.
"""

from __future__ import annotations

import inspect
import os
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from vitscope.architectures.families import blocks_of, check_model, family_of, trunk_of
from vitscope.architectures.layout import input_size
from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError, suggest
from vitscope.models.naming import is_own
from vitscope.options import check_finite
from vitscope.outside import check_fetch, has_read
from vitscope.registry import BUILDERS

# What `timm.create_model` takes for itself: to fetch weights, to read files, or to give something that is no model.
_OF_WEIGHTS = ("checkpoint_path", "cache_dir", "pretrained")  # and whatever begins with `pretrained`
_OF_TIMM = ("features_only", "feature_cfg", "feature_cls", "scriptable", "exportable", "no_jit", "kwargs_filter")

LARGEST = 1_000_000  # of any size: no model has as many blocks, heads, pixels per side or classes
MOST_TENSORS = 20_000  # weights of 1,500 blocks


def create(name: str, **options: Any) -> nn.Module:
    """A module with fresh weights. VitscopeError for a name or options of which there is no model."""
    check_options(name, options)
    if options:  # without, it is as timm made it
        _rehearse(name, options)
    return build(name, options)


def create_pretrained(name: str, **options: Any) -> nn.Module:
    """A module with timm's own weights, which are fetched where they are not on this machine."""
    check_options(name, options)
    if options:
        _rehearse(name, options)  # before anything is fetched
    import timm

    if not timm.is_model_pretrained(name):
        raise UnsupportedModelError(
            f"timm has no pretrained weights for {name}: give weights=FILE or weights='random'."
        )
    check_at_hand(name)
    try:
        return timm.create_model(name, pretrained=True, **options)
    except Exception as error:  # the hub, sockets, hashes, disks: a download has many ways to fail
        raise WeightsError(
            f"The pretrained weights of {name} could not be fetched ({type(error).__name__}: {_reason(error)}). "
            "Give a file (weights=FILE, --weights FILE), or ask for random weights (weights='random')."
        ) from error


def check_at_hand(name: str) -> None:
    """Refuse to fetch weights that only a file asks for (`vitscope.outside`); those on this machine are taken."""
    if has_read() and not at_hand(name):
        check_fetch(name, f"the pretrained weights of {name}", WeightsError)


def at_hand(name: str) -> bool:
    """Are timm's own weights of a model on this machine already?"""
    from huggingface_hub import try_to_load_from_cache
    from timm.models import get_pretrained_cfg

    found = get_pretrained_cfg(name)
    if found is None:
        return False
    files = [found.hf_hub_filename, "model.safetensors", "open_clip_model.safetensors", "pytorch_model.bin"]
    if found.hf_hub_id and any(isinstance(try_to_load_from_cache(found.hf_hub_id, f), str) for f in files if f):
        return True
    urls = [found.url] if isinstance(found.url, str) else found.url or ()
    return any((Path(torch.hub.get_dir()) / "checkpoints" / Path(url).name).is_file() for url in urls)


def check_options(name: str, options: Mapping[str, Any]) -> None:
    """Refuse what is no architecture of vitscope or timm, and options that are not of an architecture."""
    import timm

    if not is_own(name) and not timm.is_model(name):  # hf-hub: and local-dir: fetch and read what they name
        raise VitscopeError(f"There is no model {name!r}: expected 'small' or a name that `vitscope models` lists.")
    for option, value in options.items():
        if option in _OF_WEIGHTS or option.startswith("pretrained"):
            raise VitscopeError(
                f"{option} is no option of {name}: say where its weights come from with weights= (--weights FILE, "
                "'random', or nothing for timm's own)."
            )
        if option in _OF_TIMM:
            raise VitscopeError(f"{option} is no option of {name}: vitscope opens the model as it is.")
        check_finite(value, option)
        for item in value if isinstance(value, list | tuple) else [value]:
            if not (item is None or isinstance(item, str | int | float) or callable(item)):
                raise VitscopeError(f"{option}={value!r} is no option of {name}: expected a number, a word or a list.")
            if isinstance(item, int) and abs(item) > LARGEST:
                raise VitscopeError(f"{option}={item}: no model is that large (at most {LARGEST:,}).")


def option_names(name: str, module: nn.Module) -> list[str]:
    """What the builder of a model takes."""
    functions: list[Any] = [BUILDERS.get(name)] if is_own(name) else []
    bases = [vars(cls) for cls in type(module).__mro__ if cls not in (nn.Module, object)]
    functions += [base["__init__"] for base in bases if "__init__" in base]
    kinds = (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    inner = trunk_of(module)
    known = [] if inner is module else option_names(module.backbone, inner)  # type: ignore[arg-type]
    parameters = [p for function in functions for p in inspect.signature(function).parameters.values()]
    return list(dict.fromkeys([*(p.name for p in parameters if p.kind in kinds and p.name != "self"), *known]))


_rehearsed: set[str] = set()  # what went well in this process: the same model is often opened again


def _rehearse(name: str, options: Mapping[str, Any]) -> None:
    """Build and run a model on the meta device, where nothing is allocated, and refuse what would not work."""
    request = f"{name} {sorted(options.items(), key=lambda item: item[0])!r}"
    if request in _rehearsed:
        return
    with _limited(name, options):
        module = sketch(name, options)
    check_model(module)
    known = option_names(name, module)
    if unknown := [option for option in options if option not in known]:
        raise VitscopeError(f"{name} has no option {unknown[0]!r}.{suggest(unknown[0], known)}")
    with _explained(name, options):
        if not blocks_of(module):
            raise ValueError("it has no blocks")
        if family_of(module).layout is not None:  # what goes in is not known here
            return
        if min(trunk_of(module).patch_embed.grid_size) < 1:
            raise ValueError("a patch is larger than the picture")
        picture = torch.empty(1, *input_size(module), device="meta")
        _check_memory(4 * picture.numel(), name, options)
        with torch.no_grad(), torch.device("meta"), suppress(NotImplementedError):  # an operation unknown to meta
            module.eval()(picture)
    _rehearsed.add(request)


_DRAWS = {Tensor.uniform_, Tensor.normal_, Tensor.erfinv_, Tensor.clamp_, Tensor.mul_, Tensor.add_, Tensor.fill_}


class _Uninitialised(TorchFunctionMode):
    """Leaves out what would fill weights on `meta`: there are no values, and working out none is 72 % of the time."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Sequence[type], args: Sequence[Any] = (), kwargs: Mapping | None = None
    ) -> Any:
        return args[0] if func in _DRAWS and args[0].is_meta else func(*args, **(kwargs or {}))


def sketch(name: str, options: Mapping[str, Any] | None = None) -> nn.Module:
    """The model on the meta device: all of its structure, no memory, no weights."""
    check_options(name, options or {})
    with torch.random.fork_rng(devices=[]), torch.device("meta"), _Uninitialised():
        return build(name, options or {})


def build(name: str, options: Mapping[str, Any]) -> nn.Module:
    """What the builder of a name makes of options that were checked."""
    with _explained(name, options):
        if is_own(name):
            return BUILDERS.get(name)(**options)
        import timm

        return timm.create_model(name, pretrained=False, **options)


@contextmanager
def _explained(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Whatever a builder raises, as one sentence: timm asserts, divides by zero, looks up keys."""
    try:
        yield
    except VitscopeError:
        raise
    except Exception as error:
        raise VitscopeError(f"{_request(name, options)} cannot be built: {_reason(error)}.") from error


@contextmanager
def _limited(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Stop building a model as soon as its weights would not fit into this machine."""
    size = count = 0

    def weigh(_: nn.Module, __: str, tensor: Any) -> None:
        nonlocal size, count
        if tensor is not None:
            size, count = size + tensor.numel() * tensor.element_size(), count + 1
        _check_memory(size, name, options)
        if count > MOST_TENSORS:
            raise VitscopeError(f"{_request(name, options)} would have more than {MOST_TENSORS:,} weight tensors.")

    hooks = [register_module_parameter_registration_hook(weigh), register_module_buffer_registration_hook(weigh)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _check_memory(size: int, name: str, options: Mapping[str, Any]) -> None:
    try:
        there = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):  # not a POSIX system: let the allocation tell
        return
    if size > there:
        raise VitscopeError(
            f"{_request(name, options)} would take {size / 1e9:,.0f} GB or more, and this machine has "
            f"{there / 1e9:,.0f} GB. Choose smaller sizes."
        )


def _request(name: str, options: Mapping[str, Any]) -> str:
    """'vit_tiny_patch16_224 with depth=0'"""
    given = ", ".join(f"{option}={value!r:.80}" for option, value in options.items())
    return f"{name} with {given}" if given else name


def _reason(error: Exception) -> str:
    """What an error says, or the line that raised it: an assertion has often no words."""
    text = (str(error).strip() or traceback.extract_tb(error.__traceback__)[-1].line or "").splitlines()
    return f"{type(error).__name__}: {text[0][:200]}" if text else type(error).__name__
