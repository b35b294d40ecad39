"""Every model of the installed timm examined without allocating its weights: what `models/catalog.json` is made from.

python -m vitscope.models.examine    # or `make catalog`: writes the table that the package ships
"""

from __future__ import annotations

import logging
import sys

from vitscope.architectures.families import check_model, family_of
from vitscope.architectures.layout import derive_layout, input_size
from vitscope.errors import UnsupportedModelError
from vitscope.models.catalog import SHIPPED, ModelRow, as_text, timm_version
from vitscope.models.class_space import why_no_class_space
from vitscope.models.creation import sketch
from vitscope.registry import BUILDERS
from vitscope.runs.files import atomic_write

logger = logging.getLogger(__name__)

# timm files that hold transformers over image tokens; the rest of the zoo (convolutional, hierarchical) is not listed.
_FILES = (
    "beit", "cait", "deepseek_vit", "deit", "eva", "gemma4_vit", "hiera", "hieradet_sam2", "mvitv2", "naflexvit",
    "qwen3_vit", "swin_transformer", "swin_transformer_v2", "swin_transformer_v2_cr", "vision_transformer",
    "vision_transformer_hybrid", "vision_transformer_relpos", "vision_transformer_sam", "vitamin", "xcit",
)  # fmt: skip


def describe(name: str) -> ModelRow:
    """Build a model on the meta device (no memory, no weights) and read off what it is."""
    import timm

    tags = len(timm.list_pretrained(f"{name.split('.')[0]}.*"))
    try:
        module = sketch(name)
        family = check_model(module)
    except UnsupportedModelError as error:
        return ModelRow(name, supported=False, pretrained=tags, remark=str(error))
    except Exception as error:  # a model that timm itself cannot build on meta is reported, not fatal to the list
        return ModelRow(name, supported=False, pretrained=tags, remark=f"timm cannot build it: {error}")
    layout, reason = derive_layout(module), why_no_class_space(module, name)
    text = family_of(module).text
    return ModelRow(
        name=name,
        supported=True,
        family=family,
        input="text" if text else "x".join(map(str, input_size(module))),
        blocks=layout.blocks,
        heads=layout.heads,
        width=layout.width,
        tokens=str(layout.tokens) if text else f"{layout.class_tokens}+{layout.register_tokens}+{layout.image_tokens}",
        pretrained=tags,
        class_space=reason is None,
        remark=f"no class space: {reason}" if reason else "",
    )


def names_to_examine() -> list[str]:
    """vitscope's own architectures, then the transformers of the installed timm."""
    import timm
    from timm.models import list_modules

    files = set(list_modules())
    return [*BUILDERS.homes(), *sorted(n for f in _FILES if f in files for n in timm.list_models(module=f))]


def examine_all(why: str) -> list[ModelRow]:
    """A row per name, behind a progress bar: it takes half a minute, so the user reads `why`."""
    from tqdm import tqdm

    logger.info(why)
    tqdm.write(why, file=sys.stderr)
    return [describe(name) for name in tqdm(names_to_examine(), unit=" models", dynamic_ncols=True)]


def main() -> None:
    version = timm_version()
    atomic_write(SHIPPED, as_text(examine_all(f"{SHIPPED} is made from timm {version}."), version))


if __name__ == "__main__":
    main()
