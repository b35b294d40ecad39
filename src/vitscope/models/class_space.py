"""The way into class space: a model's own final norm and head(s), applied to any token of any layer."""

from __future__ import annotations

import re
from typing import Any, Literal

from torch import Tensor, nn

from vitscope.errors import UnsupportedModelError

Head = Literal["mean", "class", "distillation"]

# Architectures whose un-finetuned tags end in an image-text embedding, not in classes.
_IMAGE_TEXT = re.compile(r"clip|siglip|mci|vitamin|pe_core")


def why_no_class_space(module: Any, name: str) -> str | None:
    """The reason why tokens of this model cannot be projected on classes, or None if they can."""
    if getattr(module, "attn_pool", None) is not None:
        return "it pools its tokens by attention: a single token has no way of its own to the head"
    if module.num_classes == 0 or not isinstance(module.head, nn.Linear):
        return "it has no classes (its head is empty); give weights with a classifier"
    architecture = name.split(".")[0]
    if _IMAGE_TEXT.search(architecture) and module.num_classes in _embedding_sizes(architecture):
        return (
            f"its {module.num_classes} outputs are an image-text embedding (CLIP-style), not classes; "
            "give a fine-tuned tag or weights"
        )
    return None


def _embedding_sizes(architecture: str) -> set[int]:
    """Output sizes of an architecture's tags that were not fine-tuned on classes."""
    from timm.models import get_pretrained_cfg, list_pretrained

    tags = [t for t in list_pretrained(f"{architecture}.*") if "_ft_" not in t] or [architecture]
    configurations = [get_pretrained_cfg(t, allow_unregistered=True) for t in tags]
    return {c.num_classes for c in configurations if c is not None}


def to_class_space(module: Any, name: str, x: Tensor, head: Head = "mean") -> Tensor:
    """Logits of every token in `x` (..., C) -> (..., classes): `head(fc_norm(norm(x)))`, as the model itself does.

    A distilled model has two heads. `mean` averages their logits, as the model does with its two class tokens;
    `class` and `distillation` take one.
    """
    reason = why_no_class_space(module, name)
    if reason:
        raise UnsupportedModelError(f"{name} cannot be read in class space: {reason}.")
    x = module.norm(x)
    second = getattr(module, "head_dist", None)
    if second is None:  # only plain models have fc_norm in use; distilled ones ignore it in their forward pass
        if head == "distillation":
            raise UnsupportedModelError(f"{name} has one head: head='distillation' needs a distilled model.")
        return module.head(module.fc_norm(x))
    if head == "class":
        return module.head(x)
    if head == "distillation":
        return second(x)
    return (module.head(x) + second(x)) / 2
