"""What can be opened, and what each model can do: every name, examined without allocating its weights."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass

import torch

from vitscope.errors import UnsupportedModelError
from vitscope.models.class_space import why_no_class_space
from vitscope.models.creation import OWN, create
from vitscope.models.families import check_model
from vitscope.models.layout import derive_layout, input_size

# timm files that hold transformers over image tokens; the rest of the zoo (convolutional, hierarchical) is not listed.
_FILES = (
    "beit", "cait", "deepseek_vit", "deit", "eva", "gemma4_vit", "hiera", "hieradet_sam2", "mvitv2", "naflexvit",
    "qwen3_vit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "vision_transformer",
    "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam", "vitamin", "xcit",
)  # fmt: skip


@dataclass(frozen=True)
class ModelRow:
    """One line of `vitscope models`."""

    name: str
    supported: bool
    family: str = ""
    input: str = ""  # channels x height x width
    blocks: int = 0
    heads: int = 0
    width: int = 0
    tokens: str = ""  # class + register + image
    pretrained: int = 0  # number of tags with weights
    class_space: bool = False
    remark: str = ""  # why it is refused, or why there is no class space


def describe(name: str) -> ModelRow:
    """Build a model on the meta device (no memory, no weights) and read off what it is."""
    import timm

    tags = len(timm.list_pretrained(f"{name.split('.')[0]}.*"))
    try:
        with torch.device("meta"):
            module = create(name)
        family = check_model(module)
    except UnsupportedModelError as error:
        return ModelRow(name, supported=False, pretrained=tags, remark=str(error))
    except Exception as error:  # a model that timm itself cannot build on meta is reported, not fatal to the list
        return ModelRow(name, supported=False, pretrained=tags, remark=f"timm cannot build it: {error}")
    layout, reason = derive_layout(module), why_no_class_space(module, name)
    return ModelRow(
        name=name,
        supported=True,
        family=family,
        input="x".join(map(str, input_size(module))),
        blocks=layout.blocks,
        heads=layout.heads,
        width=layout.width,
        tokens=f"{layout.class_tokens}+{layout.register_tokens}+{layout.image_tokens}",
        pretrained=tags,
        class_space=reason is None,
        remark=f"no class space: {reason}" if reason else "",
    )


def candidate_names(pattern: str = "") -> list[str]:
    """Names of transformers that contain `pattern` or match it as a glob."""
    import timm
    from timm.models import list_modules

    files = set(list_modules())
    names = [*OWN, *sorted(n for f in _FILES if f in files for n in timm.list_models(module=f))]
    if not pattern:
        return names
    return [n for n in names if pattern in n or fnmatch.fnmatchcase(n, pattern)]


def iter_models(pattern: str = "") -> Iterator[ModelRow]:
    for name in candidate_names(pattern):
        yield describe(name)


def list_models(pattern: str = "", supported: bool = True) -> list[ModelRow]:
    """Rows for every matching name; `supported=False` includes the refused ones with their reason."""
    return [row for row in iter_models(pattern) if row.supported or not supported]
