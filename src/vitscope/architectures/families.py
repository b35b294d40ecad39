"""Which models vitscope opens, as data: one row per kind of block, one per kind of model.

Every supported timm block ends its two branches in `x = x + drop_path(branch)`. That is all the capture code needs:
the output of `drop_path1` is what attention adds to the residual stream (after LayerScale, gamma or a post-norm), the
output of `drop_path2` is what the MLP adds. A block that normalises the sum itself, `x = norm(x + branch)`, names that
norm in `summed`. A block that does not work like this is refused here, with its reason.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitscope.errors import UnsupportedModelError


@dataclass(frozen=True)
class BlockRow:
    """Where the points of a block are: names of its child modules."""

    mid: str  # its input is hook_resid_mid: norm2 in pre-norm blocks, mlp in post-norm blocks
    summed: str = ""  # its output is hook_resid_mid, where the sum of stream and branch is normalised
    attn: str = "attn"
    mlp: str = "mlp"
    attn_added: str = "drop_path1"  # its output is hook_attn_out
    mlp_added: str = "drop_path2"  # its output is hook_mlp_out


PRE_NORM = BlockRow(mid="norm2")
POST_NORM = BlockRow(mid="mlp")
SUM_NORM = BlockRow(mid="mlp", summed="norm1")

BLOCKS: dict[str, BlockRow] = {
    "timm.models.vision_transformer.Block": PRE_NORM,
    "timm.models.vision_transformer.ResPostBlock": POST_NORM,
    "timm.models.vision_transformer_relpos.RelPosBlock": PRE_NORM,
    "timm.models.vision_transformer_relpos.ResPostRelPosBlock": POST_NORM,
    "timm.models.beit.Block": PRE_NORM,
    "timm.models.eva.EvaBlock": PRE_NORM,
    "timm.models.eva.EvaBlockPostNorm": POST_NORM,
    "vitscope.models.small.PostNormBlock": SUM_NORM,
}

# (module whose input is mlp.hook_pre, module whose input is mlp.hook_post). In gated MLPs `pre` is the gate.
MLPS: dict[str, tuple[str, str]] = {
    "timm.layers.mlp.Mlp": ("act", "fc2"),
    "timm.layers.mlp.GluMlp": ("act", "fc2"),
    "timm.layers.mlp.SwiGLU": ("act", "fc2"),
    "timm.models.vitamin.GeGluMlp": ("act", "w2"),
}


@dataclass(frozen=True)
class Family:
    """What a kind of model is called, and where its parts are: dotted names of its modules."""

    title: str
    embedding: str = "patch_embed"  # its output is hook_embed
    blocks: str = "blocks"
    norm: str = "norm"  # its output is ln_final.hook_normalized
    head: str = "head"  # a linear layer: tokens, through the norm, -> classes
    layout: Callable[[Any], Any] | None = None  # module -> Layout; None: that of a picture's patches
    answer: Callable[[Any], Tensor] = lambda output: output  # what a call of the model returns -> its logits


MODELS: dict[str, Family] = {
    "timm.models.vision_transformer.VisionTransformer": Family("ViT"),
    "timm.models.deit.VisionTransformerDistilled": Family("distilled DeiT"),
    "timm.models.eva.Eva": Family("EVA / RoPE / DINOv3"),
    "timm.models.beit.Beit": Family("BEiT"),
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": Family("ViT with relative positions"),
}

REFUSED: dict[str, str] = {
    "timm.models.vision_transformer.ParallelScalingBlock": (
        "its blocks run attention and MLP in parallel from one projection: there is no residual between the two"
    ),
    "timm.models.vision_transformer.DiffParallelScalingBlock": (
        "its blocks run differential attention and the MLP in parallel: there is no single softmax pattern per head"
    ),
    "timm.models.vision_transformer.ParallelThingsBlock": (
        "its blocks hold several attentions side by side: 'the' q, k and v of a block do not exist"
    ),
    "timm.layers.diff_attention.DiffAttention": (
        "differential attention subtracts two softmax patterns: 'the' pattern of a head does not exist"
    ),
    "timm.models.naflexvit.NaFlexVit": "NaFlex models take patch sequences of varying length: their grid is not fixed",
    "timm.models.vision_transformer_sam.VisionTransformerSAM": "SAM attends within windows: tokens have no fixed row",
    "timm.models.swin_transformer.SwinTransformer": "Swin attends within shifted windows and merges tokens",
    "timm.models.swin_transformer_v2.SwinTransformerV2": "Swin attends within shifted windows and merges tokens",
    "timm.models.swin_transformer_v2_cr.SwinTransformerV2Cr": "Swin attends within shifted windows and merges tokens",
    "timm.models.hiera.Hiera": "Hiera pools tokens between its stages: the token grid changes with depth",
    "timm.models.hieradet_sam2.HieraDet": "Hiera pools tokens between its stages: the token grid changes with depth",
    "timm.models.mvitv2.MultiScaleVit": "MViT pools tokens between its stages: the token grid changes with depth",
    "timm.models.cait.Cait": "CaiT adds its class token only in separate class-attention blocks",
    "timm.models.xcit.Xcit": "XCiT attends between channels, not between tokens",
    "timm.models.deepseek_vit.DeepseekVitClassifier": "its blocks lie inside an encoder with its own token layout",
    "timm.models.deepseek_vit.DeepseekVitEncoder": "its blocks and token layout are its own",
    "timm.models.gemma4_vit.Gemma4VitClassifier": "its blocks lie inside an encoder with its own token layout",
    "timm.models.gemma4_vit.Gemma4VitEncoder": "its blocks and token layout are its own",
    "timm.models.qwen3_vit.Qwen3VitClassifier": "its blocks lie inside an encoder with its own token layout",
    "timm.models.qwen3_vit.Qwen3VitEncoder": "its token layout is its own",
}


def _names(module: nn.Module) -> list[str]:
    """Qualified class names, most derived first, so that users' subclasses of a supported class are found."""
    return _names_of(type(module))


def _names_of(cls: type) -> list[str]:
    return [f"{c.__module__}.{c.__qualname__}" for c in cls.__mro__]


def _refuse(module: nn.Module, what: str, known: dict[str, str]) -> UnsupportedModelError:
    for name in _names(module):
        if name in REFUSED:
            return UnsupportedModelError(f"{what} {type(module).__name__} is not supported: {REFUSED[name]}.")
    return UnsupportedModelError(
        f"{what} {type(module).__name__} is not supported: vitscope knows {', '.join(known)}. "
        "`vitscope models` lists the names that open; docs/models.md says how to add a family."
    )


def register_family(
    module: type[nn.Module], family: Family, blocks: Mapping[type[nn.Module], BlockRow] | None = None
) -> None:
    """Let models of a class of one's own open, `open_model(module)` or by `package.module:function`: their row, and
    rows of blocks that are not timm's.

    A row counts for the class and its subclasses.
    """
    MODELS[_names_of(module)[0]] = family
    BLOCKS.update({_names_of(block)[0]: row for block, row in (blocks or {}).items()})


def family_of(module: nn.Module) -> Family:
    """The row of a model, or UnsupportedModelError with the reason."""
    for name in _names(module):
        if name in REFUSED:
            break
        if name in MODELS:
            return MODELS[name]
    raise _refuse(module, "Model", {m.rsplit(".", 1)[1]: "" for m in MODELS})


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a model, in their order."""
    return list(module.get_submodule(family_of(module).blocks).children())


def final_norms(module: nn.Module) -> list[nn.Module]:
    """What a token passes on its way to the head. Distilled DeiTs have an `fc_norm` too, and do not use it."""
    norms = [module.get_submodule(family_of(module).norm)]
    pooled = getattr(module, "fc_norm", None)
    return norms if pooled is None or getattr(module, "head_dist", None) is not None else [*norms, pooled]


def heads_of(module: nn.Module) -> list[nn.Module]:
    """One head, or two: that of the class token and that of the distillation token. None where the row names none."""
    name, second = family_of(module).head, getattr(module, "head_dist", None)
    return [head for head in (module.get_submodule(name) if name else None, second) if head is not None]


def count_outputs(module: nn.Module) -> int:
    """`num_classes`, as models of timm have it; of one's own that has none, the outputs of its head."""
    said = getattr(module, "num_classes", None)
    if said is not None:
        return int(said)
    head = next(iter(heads_of(module)), None)
    return head.out_features if isinstance(head, nn.Linear) else 0


def check_model(module: nn.Module) -> str:
    """The family's readable name, or UnsupportedModelError with the reason."""
    family = family_of(module)
    for part in ("embedding", "blocks", "norm", "head"):
        name = getattr(family, part)
        try:
            module.get_submodule(name)
        except AttributeError as error:
            own = ", ".join(child for child, _ in module.named_children())
            raise UnsupportedModelError(
                f"{type(module).__name__} has no module {name!r}, its {part} by its Family: it has {own}. Say which "
                f"one it is: Family({family.title!r}, {part}=...)."
            ) from error
    for block in blocks_of(module):
        block_row(block)
    return family.title


def block_row(block: nn.Module) -> BlockRow:
    """The row that says where the points of this block are."""
    for name in _names(block):
        if name in REFUSED:
            break
        if name in BLOCKS:
            row = BLOCKS[name]
            attention = block.get_submodule(row.attn)
            if any(n in REFUSED for n in _names(attention)):
                raise _refuse(attention, "Attention", {})
            return row
    raise _refuse(block, "Block", {b.rsplit(".", 1)[1]: "" for b in BLOCKS})


def mlp_row(mlp: nn.Module) -> tuple[str, str] | None:
    """Names of the children whose inputs are mlp.hook_pre and mlp.hook_post; None where the MLP is of another kind."""
    return next((MLPS[n] for n in _names(mlp) if n in MLPS), None)
