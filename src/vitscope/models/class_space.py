"""The way into class space: a model's own final norm and head(s), applied to any token of any layer."""

from __future__ import annotations

import re
from typing import Any, Literal

from torch import Tensor, nn

from vitscope.architectures.families import classes_of, family_of, heads_of
from vitscope.architectures.layout import derive_layout
from vitscope.errors import UnsupportedModelError
from vitscope.models.vocabulary import before_head

Head = Literal["mean", "class", "distillation"]
Origin = Literal["tag", "file", "classes"]  # what a head's weights are those of: its name's tag, a file, named classes

# Architectures whose un-finetuned tags end in an image-text embedding, not in classes.
_IMAGE_TEXT = re.compile(r"clip|siglip|mci|vitamin|pe_core")


def why_no_class_space(module: Any, name: str, origin: Origin = "tag") -> str | None:
    """The reason why tokens of this model cannot be projected on classes, or None if they can."""
    if getattr(module, "attn_pool", None) is not None:
        return "it pools its tokens by attention: a single token has no way of its own to the head"
    if classes_of(module) == 0 or not isinstance(next(iter(heads_of(module)), None), nn.Linear):
        return family_of(module).headless
    if aside := family_of(module).aside:
        return aside
    if getattr(getattr(module, "config", None), "final_logit_softcapping", None):
        return (
            "it squeezes its logits (final_logit_softcapping), which a single token's way to the head would leave out"
        )
    if _may_be_embedding(module, name, origin):
        return (
            f"its {module.num_classes} outputs are an image-text embedding (CLIP-style), not classes; "
            f"give a fine-tuned tag or weights{_for_own_classes(name.split('.')[0])}"
        )
    return None


def check_class_space(module: Any, name: str, origin: Origin = "tag") -> None:
    if reason := why_no_class_space(module, name, origin):
        raise UnsupportedModelError(f"{name} cannot be read in class space: {reason}.")


def _may_be_embedding(module: Any, name: str, origin: Origin) -> bool:
    """The tag that the module was made from tells, fine-tuned or not: with another number of outputs its head is new.

    Weights from a file under a bare name may be those of any tag, so any embedding's size is one too many.
    """
    architecture, _, tag = name.partition(".")
    made_from = getattr(module, "pretrained_cfg", None) or {}
    if origin == "classes" or made_from.get("architecture") != architecture or not _IMAGE_TEXT.search(architecture):
        return False
    if origin == "file" and not tag:
        return module.num_classes in _embedding_sizes(architecture)
    return "_ft_" not in (made_from.get("tag") or "") and module.num_classes == made_from.get("num_classes")


def _for_own_classes(architecture: str) -> str:
    """How to say that as many outputs as an embedding has are classes of one's own."""
    from timm.models import list_pretrained

    tuned = list_pretrained(f"{architecture}.*_ft_*")
    return f" (if they are classes of your own, such a tag in the name says so: {tuned[0]})" if tuned else ""


def _embedding_sizes(architecture: str) -> set[int]:
    """Output sizes of an architecture's tags that were not fine-tuned on classes."""
    from timm.models import get_pretrained_cfg, list_pretrained

    tags = [t for t in list_pretrained(f"{architecture}.*") if "_ft_" not in t] or [architecture]
    configurations = [get_pretrained_cfg(t, allow_unregistered=True) for t in tags]
    return {c.num_classes for c in configurations if c is not None}


def to_class_space(module: Any, name: str, x: Tensor, head: Head = "mean", origin: Origin = "tag") -> Tensor:
    """Logits of every token in `x` (..., C) -> (..., classes): final norms, then head, as the model itself does.

    A distilled model has two heads. `mean` averages their logits, as the model does with its two class tokens;
    `class` and `distillation` take one. Segmenter's mask decoder reads all patches of a picture together, (B, T, C):
    what it would answer if the model ended there.
    """
    reading = family_of(module).reading
    if reading is not None:
        return reading(module, before_head(module, _all_patches(module, name, x)))
    check_class_space(module, name, origin)
    heads = heads_of(module)
    if head == "distillation" and len(heads) == 1:
        raise UnsupportedModelError(f"{name} has one head: head='distillation' needs a distilled model.")
    x = before_head(module, x)
    chosen = {"mean": heads, "class": heads[:1], "distillation": heads[1:]}[head]
    return chosen[0](x) if len(chosen) == 1 else (chosen[0](x) + chosen[1](x)) / 2


def _all_patches(module: Any, name: str, x: Tensor) -> Tensor:
    """Pictures of another size than the model's have another number of patches, and never its number of tokens."""
    layout = derive_layout(module)
    if x.ndim != 3 or x.shape[1] == layout.tokens != layout.image_tokens:
        raise UnsupportedModelError(
            f"{name} decides all patches of a picture together: give its {layout.image_tokens} image tokens "
            f"(B, {layout.image_tokens}, width), without class and register tokens, not {tuple(x.shape)}."
        )
    return x
