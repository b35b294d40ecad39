"""The attention of a model in plain values: what a run keeps in config.yaml and what the command line takes.

    {"name": "rpc", "layers": "0", "iterations": 4, "lambda": 4.0, "variant": "code", "symmetric": true}
    rpc:layers=0,iterations=4,lambda=4

One description, or a list of them that are carried out in order (text: separated by semicolons). A model with a decoder
of blocks names those beside its layers, `rpc:layers=0,decoder=0`; where neither is named, all blocks of both are meant.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from vitscope.attention.registry import attention_class, build_options, list_attentions, plain_options
from vitscope.errors import VitscopeError
from vitscope.registry import ATTENTIONS, read_value

_PLACES = ("layers", "decoder")  # which blocks, of the model and of its decoder
Description = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]


def convert_from_description(model: Any, description: Description | None) -> Any:
    """Carry out a description on a built model, in place; None leaves it as it is."""
    from vitscope.attention.conversion import convert

    for entry in parse_attention(description):
        convert(model, **entry)
    return model


def describe_attention(model: Any) -> list[dict[str, Any]]:
    """The description that `convert_from_description` makes this model of; empty where all blocks are timm's own."""
    from vitscope.attention.conversion import attention_of, format_layers, module_of, parts_of
    from vitscope.attention.module import AttentionModule

    groups: dict[tuple[type[AttentionModule], Any], dict[str, list[int]]] = {}
    for part in parts_of(module_of(model)):
        for i, block in enumerate(part.blocks):
            attention = attention_of(block)
            if isinstance(attention, AttentionModule):
                places = groups.setdefault((attention_class(attention.name), attention.options), {})
                places.setdefault(part.name, []).append(i)
    return [
        {"name": cls.name, **{part: format_layers(found) for part, found in places.items()}, **plain_options(options)}
        for (cls, options), places in groups.items()
    ]


def parse_attention(description: Description | None) -> list[dict[str, Any]]:
    """Descriptions from any of their forms, names and options checked. Text: `NAME[:KEY=VALUE,...][;...]`.

    NAME may be `package.module:Class`.
    """
    entries = _entries(description)
    for entry in entries:
        if not isinstance(entry, Mapping) or not isinstance(entry.get("name"), str):
            raise VitscopeError(
                f"An attention is described by its name and options, as in 'rpc:layers=0,iterations=4', not {entry!r}."
            )
        options = {key: value for key, value in entry.items() if key not in ("name", *_PLACES)}
        build_options(attention_class(entry["name"]), options)
    return [dict(entry) for entry in entries]


def check_names(description: Description | None) -> None:
    """Raise at an attention that nobody has registered, without importing anything."""
    for name in attention_names(description):
        ATTENTIONS.check_name(name)


def attention_names(description: Description | None) -> list[str]:
    """The attentions that a description names, known or not."""
    return [str(entry.get("name")) for entry in _entries(description) if isinstance(entry, Mapping)]


def _entries(description: Description | None) -> list[Any]:
    if isinstance(description, str):
        return [_parse_entry(part) for part in description.split(";") if part.strip()]
    if description is None:
        return []
    return [description] if isinstance(description, Mapping) else list(description)


def _parse_entry(text: str) -> dict[str, Any]:
    """'rpc:layers=0,2-3,lambda=4' -> {'name': 'rpc', 'layers': '0,2-3', 'lambda': 4}

    An attention of one's own: 'package.module:Class:layers=0'.
    """
    name, _, rest = text.partition(":")
    # package.module:Class, where the module may be called as the attention in it
    if "=" not in rest.partition(":")[0] and (":" in rest or name.strip() not in list_attentions()):
        attribute, _, rest = rest.partition(":")
        name = f"{name}:{attribute.strip()}" if attribute.strip() else name
    settings: dict[str, str] = {}
    key = ""
    for piece in rest.split(",") if rest.strip() else []:
        if "=" in piece:
            key, _, settings[key] = (part.strip() for part in piece.partition("="))
        elif key in _PLACES:  # the only values with commas: 'layers=0,2-3'
            settings[key] += f",{piece.strip()}"
        else:
            raise VitscopeError(f"--attention {text!r}: {piece.strip()!r} is no KEY=VALUE, as in 'rpc:iterations=4'.")
    values = {key: value if key in _PLACES else read_value(value, f"{key}={value}") for key, value in settings.items()}
    return {"name": name.strip(), **values}
