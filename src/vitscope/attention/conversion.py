"""convert: give chosen blocks of a built model another attention and keep its weights.

This is the one mechanism for every supported model. timm's own `attn_layer=` slot is all or nothing, refused by BEiT,
EVA and relative-position models, and accepted but ignored by one family; `create_with_attn_layer` is a convenience on
top of it that checks the result.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import Any

from torch import nn

from vitscope.architectures.compiled import refuse_compiled
from vitscope.architectures.families import block_row, classes_of, decoder_blocks_of, family_of
from vitscope.architectures.layout import derive_layout
from vitscope.attention.description import describe_attention
from vitscope.attention.encoders import as_in_encoders, is_encoder_attention, with_timm_names
from vitscope.attention.module import AttentionModule
from vitscope.attention.registry import attention_class, build_options
from vitscope.errors import UnsupportedModelError, VitscopeError

Layers = str | int | Iterable[int]

# attention classes whose forward pass AttentionModule reproduces: timm's, and FAN's
SOURCES = (
    "timm.layers.attention.Attention",
    "timm.layers.attention.AttentionRope",
    "timm.models.beit.Attention",
    "timm.models.eva.EvaAttention",
    "timm.models.vision_transformer_relpos.RelPosAttention",
    "vitscope.models.fan_parts.TokenMixing",
)


def convert(
    model: Any, name: str, layers: Layers | None = None, *, decoder: Layers | None = None, **options: Any
) -> Any:
    """Change the attention of chosen blocks, in place, and return the model.

    model: a timm model or a vitscope Model.
    name: one of `list_attentions()`.
    layers: 'all', '0', '0-3', '0,2,5-7', a number or numbers; blocks count from 0.
    decoder: the same of a decoder with blocks (Segmenter's mask decoder). Whoever names layers of one part converts
        these alone; whoever names none converts all of both.
    options: those of the attention, e.g. iterations=4, lambd=4.0, variant='exact'. Call again for other settings in
        other layers.

    Trained weights are used as they are. Where queries become keys, the query projection goes. Convert before building
    an optimiser: projections that lose their query rows are new parameters.
    """
    module = module_of(model)
    refuse_compiled(module)
    cls, checked = attention_class(name), build_options(attention_class(name), options)
    new: list[tuple[nn.Module, nn.Module]] = []
    # all new modules first: an error in one block must not leave the model half converted
    for part, chosen in _chosen(module, layers, decoder).items():
        fitted = _fit_tokens(checked, part)
        new += [(part.blocks[i], _new(cls, part.blocks[i], i, fitted)) for i in chosen]
    for block, attention in new:
        block.set_submodule(block_row(block).attn, attention)
    for part, chosen in _chosen(module, layers, decoder).items():
        check_converted(part.module, cls, chosen, part.blocks)
    if module is not model:
        model.source["attention"] = describe_attention(module)
    return model


def create_with_attn_layer(model_name: str, attention: str, options: dict[str, Any] | None = None, **timm: Any) -> Any:
    """`timm.create_model` with its `attn_layer=` slot filled, checked afterwards: all blocks or an error.

    The convenience for plain ViTs and DeiTs. `convert` works on every supported model and on chosen blocks.
    """
    import timm as library

    cls = attn_layer(attention, **(options or {}))
    try:
        module = library.create_model(model_name, attn_layer=cls, **timm)
    except TypeError as error:
        if "attn_layer" not in str(error):
            raise
        raise UnsupportedModelError(
            f"{model_name} does not take attn_layer=. Build it plainly and use convert(model, {attention!r})."
        ) from error
    check_converted(module, attention_class(attention), range(len(blocks_of(module))))
    return module


def attn_layer(name: str, **options: Any) -> type[AttentionModule]:
    """A class for timm's `attn_layer=` slot, with options fixed (timm wants a class there, not a function)."""
    cls = attention_class(name)
    build_options(cls, options)  # a wrong option is an error here, not inside timm

    class Fixed(cls):  # type: ignore[misc, valid-type]
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **options, **kwargs)

    Fixed.__name__ = Fixed.__qualname__ = cls.__name__
    return Fixed


@dataclass(frozen=True, eq=False)
class Part:
    """The blocks of a model, or those of its decoder."""

    module: nn.Module
    name: str  # 'layers' or 'decoder', as in a description
    blocks: list[nn.Module]

    @property
    def tokens(self) -> int:
        """That pass its blocks: a mask decoder has patches and one for each class."""
        layout = derive_layout(self.module)
        return layout.tokens if self.name == "layers" else layout.image_tokens + classes_of(self.module)


def parts_of(module: nn.Module) -> list[Part]:
    """The blocks of a model and, where it has a decoder with blocks, those."""
    parts = [Part(module, "layers", blocks_of(module))]
    try:
        behind = decoder_blocks_of(module)
    except UnsupportedModelError:
        return parts
    return [*parts, Part(module, "decoder", behind)] if behind else parts


def _chosen(module: nn.Module, layers: Layers | None, decoder: Layers | None) -> dict[Part, list[int]]:
    parts = parts_of(module)
    if decoder is not None and len(parts) == 1:
        raise VitscopeError(
            f"decoder={decoder!r} names blocks of a decoder, and {type(module).__name__} has none: leave it out."
        )
    asked = {"layers": layers, "decoder": decoder}
    if layers is None and decoder is None:
        asked = {"layers": "all", "decoder": "all"}
    return {p: parse_layers(found, len(p.blocks), p.name) for p in parts if (found := asked[p.name]) is not None}


def check_converted(
    module: nn.Module, cls: type[AttentionModule], layers: Iterable[int], blocks: list[nn.Module] | None = None
) -> None:
    """An error that lists the requested blocks whose attention is still another."""
    blocks = blocks_of(module) if blocks is None else blocks
    unchanged = {i: found for i in layers if not isinstance(found := attention_of(blocks[i]), cls)}
    if unchanged:
        kinds = ", ".join(sorted({type(a).__name__ if a is not None else "none" for a in unchanged.values()}))
        raise UnsupportedModelError(
            f"{type(module).__name__} was asked for {cls.name!r} attention, but block(s) "
            f"{format_layers(unchanged)} still have another ({kinds}, in {type(blocks[min(unchanged)]).__name__}): "
            "this model ignores attn_layer=. `vitscope models` lists what is supported; use convert() on such a model."
        )


def parse_layers(layers: Layers, blocks: int, name: str = "layers") -> list[int]:
    """Block numbers in ascending order: 'all', 3, '0', '0-3', '0,2,5-7', [0, 1]."""
    chosen: set[int] = set()
    if isinstance(layers, str):
        for part in layers.split(","):
            if part.strip() == "all":
                chosen.update(range(blocks))
            elif match := re.fullmatch(r"\s*(\d+)\s*(?:-\s*(\d+)\s*)?", part):
                first, last = int(match[1]), int(match[2] or match[1])
                if last < first:
                    raise VitscopeError(f"{name}={layers!r}: {part.strip()} runs backwards, write {last}-{first}.")
                chosen.update((first, last))  # both ends, so that a number beyond the model is seen below
                chosen.update(range(first, min(last, blocks) + 1))
            else:
                raise VitscopeError(
                    f"{name}={layers!r} cannot be read: expected 'all', '0', '0-3' or '0,2,5-7' (blocks count from 0)."
                )
    else:
        numbers = [layers] if isinstance(layers, int) else list(layers)
        if any(isinstance(n, bool) or not isinstance(n, int) for n in numbers):
            raise VitscopeError(f"{name}={layers!r}: expected block numbers, 'all', '0-3' or '0,2,5-7'.")
        chosen.update(numbers)
    if not chosen:
        raise VitscopeError("No layers were chosen: expected 'all', '0', '0-3' or '0,2,5-7'.")
    if beyond := sorted(n for n in chosen if not 0 <= n < blocks):
        owner = "decoder" if name == "decoder" else "model"
        raise VitscopeError(
            f"{name}={layers!r} names block {', '.join(map(str, beyond))}, but the {owner} has {blocks} blocks, "
            f"0 to {blocks - 1}. For every block write 'all'."
        )
    return sorted(chosen)


def format_layers(layers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> '0-2,5'"""
    runs: list[list[int]] = []
    for n in sorted(layers):
        if runs and n == runs[-1][-1] + 1:
            runs[-1].append(n)
        else:
            runs.append([n])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs)


def module_of(model: Any) -> nn.Module:
    """The module itself, or the one that a vitscope Model wraps."""
    return model if isinstance(model, nn.Module) else model.module


def blocks_of(module: Any) -> list[nn.Module]:
    """The transformer blocks of a ViT."""
    try:
        name = family_of(module).blocks
    except UnsupportedModelError:  # its blocks themselves say why they cannot be converted
        name = "blocks"
    blocks = dict(module.named_modules()).get(name)
    if blocks is None or not len(list(blocks.children())):
        raise UnsupportedModelError(f"{type(module).__name__} has no transformer blocks (`{name}`) to convert.")
    return list(blocks.children())


def attention_of(block: nn.Module) -> nn.Module | None:
    """The attention of a block; None where it has none under a name that is known."""
    try:
        return block.get_submodule(block_row(block).attn)
    except UnsupportedModelError:  # its own check says why it cannot be converted
        return getattr(block, "attn", None)


def _new(cls: type[AttentionModule], block: nn.Module, index: int, options: Any) -> AttentionModule:
    source = _source(block, index)
    if not is_encoder_attention(source):
        return cls.from_timm(source, options)
    return as_in_encoders(cls).from_timm(with_timm_names(source), options)


def _source(block: nn.Module, index: int) -> nn.Module:
    """The attention of a block, if it is one that can be taken over."""
    attention = block.get_submodule(block_row(block).attn)
    if isinstance(attention, AttentionModule) or is_encoder_attention(attention):
        return attention
    for base in type(attention).__mro__:
        if f"{base.__module__}.{base.__qualname__}" in SOURCES:
            # a subclass with a forward pass of its own does something that would be lost
            if type(attention).forward is base.forward:  # type: ignore[attr-defined]
                return attention
            break
    raise UnsupportedModelError(
        f"The attention of block {index}, {type(attention).__module__}.{type(attention).__qualname__}, cannot be "
        f"converted: known are {', '.join(s.rsplit('.', 1)[1] for s in SOURCES)} with their own forward pass, and the "
        "self-attention of BERT and its kin."
    )


def _fit_tokens(options: Any, part: Part) -> Any:
    """Fill in the number of tokens for an attention that is tied to it."""
    if not any(f.name == "tokens" for f in fields(options)) or getattr(options, "form", "") != "matrix":
        return options
    if options.tokens not in (None, part.tokens):
        raise VitscopeError(f"tokens={options.tokens} does not fit this model, which has {part.tokens} tokens.")
    return replace(options, tokens=part.tokens)
