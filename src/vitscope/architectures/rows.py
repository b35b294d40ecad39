"""What is said of a kind of block and of a kind of model: rows of the tables in `families` and `text_rows`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


@dataclass(frozen=True)
class BlockRow:
    """Where the points of a block are: dotted names of its modules. Of a module that returns a tuple, item 0 counts.

    A block without `mid` and `summed` runs its branches side by side: it has no hook_resid_mid.
    """

    mid: str = ""  # its input is hook_resid_mid: norm2 in pre-norm blocks, mlp in post-norm blocks
    summed: str = ""  # its output is hook_resid_mid, where the sum of stream and branch is normalised
    attn: str = "attn"  # the module that makes the call of attention
    mlp: str = "mlp"  # the module whose kind is a row of MLPS; '' is the block itself
    attn_added: str = "drop_path1"  # its output is hook_attn_out
    mlp_added: str = "drop_path2"  # its output is hook_mlp_out
    attn_out: str = ""  # its output is attn.hook_out, where that is not the output of `attn`
    mlp_out: str = ""  # its output is mlp.hook_out, where that is not the output of `mlp`
    attn_proj: str = "attn.proj"  # the linear layer that takes what all heads read, side by side
    attn_steps: tuple[str, ...] = ("ls1", "gamma_1")  # its output passes them before it is added; what is absent, not
    mlp_steps: tuple[str, ...] = ("ls2", "gamma_2")  # the same for the MLP: scales or norms
    flat: bool = False  # between its branches tokens of all texts are one list: (B * N, C)
    scale: float | None = None  # of its call of attention, where the attention module does not say it (`scaling`)
    flag: str = ""  # an attribute of the block: where it is False, `otherwise` is the row
    otherwise: BlockRow | None = None

    @property
    def parallel(self) -> bool:
        return not self.mid and not self.summed


@dataclass(frozen=True)
class Family:
    """What a kind of model is called, and where its parts are: dotted names of its modules."""

    title: str
    embedding: str = "patch_embed"  # its output is hook_embed
    blocks: str = "blocks"
    norm: str = "norm"  # its output is ln_final.hook_normalized; '' where there is none
    head: str = "head"  # a linear layer: tokens, through the norm, -> classes; '' where there is none
    layout: Callable[[Any], Any] | None = None  # module -> Layout; None: that of a picture's patches
    answer: Callable[[Any], Tensor] = lambda output: output  # what a call of the model returns -> its logits
    transform: Callable[[Any, Tensor], Tensor] | None = None  # (module, tokens) -> what its head takes, behind the norm
    call: Mapping[str, Any] = field(default_factory=dict)  # what every call of the model says besides its inputs
    headless: str = "it has no classes (its head is empty); give weights with a classifier"  # why there are no classes
    aside: str = ""  # why a single token has no way of its own to the head; '' where it has one
    text: bool = False  # does it take texts?
    trunk: str = ""  # the ViT itself, in a model that has more around it; '' is the whole model
    decoder: str = ""  # blocks behind those of the trunk: their attention is converted, too, and they have no points
    # (module, all patches of pictures (B, T, C)) -> (B, T, classes), where no token has a way to classes of its own
    reading: Callable[[Any, Tensor], Tensor] | None = None
    inside: str = ""  # the module whose row counts, where a model is one with something of its own behind it
