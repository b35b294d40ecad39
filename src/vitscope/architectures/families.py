"""Which models vitscope opens, as data: one row per kind of block, one per kind of model.

Every supported timm block ends its two branches in `x = x + drop_path(branch)`. That is all the capture code needs:
the output of `drop_path1` is what attention adds to the residual stream (after LayerScale, gamma or a post-norm), the
output of `drop_path2` is what the MLP adds. A block that normalises the sum itself, `x = norm(x + branch)`, names that
norm in `summed`. A block that does not work like this is refused here, with its reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from torch import nn

from vitscope.architectures import text_rows
from vitscope.architectures.rows import BlockRow as BlockRow
from vitscope.architectures.rows import Family as Family
from vitscope.errors import UnsupportedModelError

R = TypeVar("R")

PRE_NORM = BlockRow(mid="norm2")
POST_NORM = BlockRow(mid="mlp", attn_steps=("norm1",), mlp_steps=("norm2",))
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
    "vitscope.models.fan_parts.FANBlock": PRE_NORM,
    **text_rows.BLOCKS,
}

# (module whose input is mlp.hook_pre, module whose input is mlp.hook_post). In gated MLPs `pre` is the gate.
MLPS: dict[str, tuple[str, str]] = {
    "timm.layers.mlp.Mlp": ("act", "fc2"),
    "timm.layers.mlp.GluMlp": ("act", "fc2"),
    "timm.layers.mlp.SwiGLU": ("act", "fc2"),
    "timm.models.vitamin.GeGluMlp": ("act", "w2"),
    "vitscope.models.fan_parts.ChannelProcessing": ("mlp_v.dwconv.act", "mlp_v.fc2"),
    **text_rows.MLPS,
}


def _decoder_layout(module: nn.Module) -> Any:
    from vitscope.architectures.text_layout import decoder_layout

    return decoder_layout(module)


SEGMENTER = Family(
    "Segmenter, linear decoder",
    embedding="encoder.patch_embed",
    blocks="encoder.blocks",
    norm="encoder.norm",
    head="decoder.head",
    trunk="encoder",
)
MASK_SEGMENTER = replace(
    SEGMENTER,
    title="Segmenter, mask decoder",
    head="",
    decoder="decoder.blocks",
    headless="its mask decoder decides all patches of a picture together: a single token has no way of its own to the "
    "classes",
    reading=lambda module, patches: module.decoder.forward(patches),
)
OWN_DECODER = Family("decoder of timm's blocks", embedding="embed", layout=_decoder_layout, text=True)

MODELS: dict[str, Family] = {
    "timm.models.vision_transformer.VisionTransformer": Family("ViT"),
    "timm.models.deit.VisionTransformerDistilled": Family("distilled DeiT"),
    "timm.models.eva.Eva": Family("EVA / RoPE / DINOv3"),
    "timm.models.beit.Beit": Family("BEiT"),
    "timm.models.vision_transformer_relpos.VisionTransformerRelPos": Family("ViT with relative positions"),
    "vitscope.models.segmenter.LinearSegmenter": SEGMENTER,
    "vitscope.models.segmenter.MaskSegmenter": MASK_SEGMENTER,
    "vitscope.models.fan.FAN": Family(
        "FAN",
        norm="",  # it normalises the class token, which is in no block
        aside="its tokens reach the classes only through class attention, behind its blocks: a single token has no way "
        "of its own to the head",
    ),
    "vitscope.models.lm_small.SmallLanguageModel": OWN_DECODER,
    "vitscope.models.symlm.PublishedLanguageModel": replace(
        OWN_DECODER,
        headless="its head is an adaptive softmax, whose words come in clusters: a token has no logit per word",
    ),
    "vitscope.models.text_classifier.TextClassifier": Family("classes of texts", text=True, inside="encoder"),
    **text_rows.MODELS,
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


def _names(module: nn.Module | type) -> list[str]:
    """Qualified class names, most derived first, so that users' subclasses of a supported class are found."""
    cls = module if isinstance(module, type) else type(module)
    return [f"{c.__module__}.{c.__qualname__}" for c in cls.__mro__]


def _why_refused(name: str) -> str | None:
    """The reason by the class itself, or by the kind of text model that it belongs to."""
    return REFUSED.get(name) or text_rows.why_refused(name)


def _refuse(module: nn.Module, what: str, known: Iterable[str]) -> UnsupportedModelError:
    for reason in map(_why_refused, _names(module)):
        if reason:
            return UnsupportedModelError(f"{what} {type(module).__name__} is not supported: {reason}.")
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
    MODELS[_names(module)[0]] = family
    BLOCKS.update({_names(block)[0]: row for block, row in (blocks or {}).items()})


def family_of(module: nn.Module) -> Family:
    """The row of a model, or UnsupportedModelError with the reason."""
    row = _row_of(module, MODELS, "Model")
    return _around(row, family_of(module.get_submodule(row.inside))) if row.inside else row


def _row_of(module: nn.Module, rows: Mapping[str, R], kind: str) -> R:
    """The row of its class, or of the nearest one above that has one."""
    for name in _names(module):
        if _why_refused(name):
            break
        if name in rows:
            return rows[name]
    raise _refuse(module, kind, [name.rsplit(".", 1)[1] for name in rows])


def _around(outer: Family, inner: Family) -> Family:
    """The row of a model with a head of its own, from that of what is inside of it."""
    places: dict[str, Any] = {
        part: f"{outer.inside}.{getattr(inner, part)}"
        for part in ("embedding", "blocks", "norm")
        if getattr(inner, part)
    }
    layout = inner.layout
    return replace(
        inner,
        **places,
        title=f"{inner.title}, {outer.title}",
        head=outer.head,
        layout=None if layout is None else (lambda module: layout(module.get_submodule(outer.inside))),
        answer=outer.answer,
        transform=None,
        call=outer.call,
        headless=outer.headless,
        inside=outer.inside,
    )


def is_text_module(module: nn.Module) -> bool:
    """Is it a text model by its row, refused or not?"""
    names = _names(module)
    return any((name in MODELS and MODELS[name].text) or text_rows.why_refused(name) for name in names)


def blocks_of(module: nn.Module) -> list[nn.Module]:
    """The transformer blocks of a model, in their order."""
    return list(module.get_submodule(family_of(module).blocks).children())


def trunk_of(module: nn.Module) -> Any:
    """The ViT inside of a model that has more around it, such as the encoder of a Segmenter; else the model."""
    return module.get_submodule(family_of(module).trunk)


def decoder_blocks_of(module: nn.Module) -> list[nn.Module]:
    """Blocks behind those of the trunk, such as the two of Segmenter's mask decoder; of most models, none."""
    name = family_of(module).decoder
    return list(module.get_submodule(name).children()) if name else []


def final_norm(module: nn.Module) -> nn.Module | None:
    """The module whose output is ln_final.hook_normalized; None where a model has none, such as BERT."""
    name = family_of(module).norm
    try:
        return module.get_submodule(name) if name else None
    except AttributeError:  # OPT-350m has None in its place
        return None


def final_norms(module: nn.Module) -> list[nn.Module]:
    """What a token passes on its way to the head. Distilled DeiTs have an `fc_norm` too, and do not use it."""
    norm = final_norm(module)
    norms = [] if norm is None else [norm]
    trunk = trunk_of(module)
    pooled = getattr(trunk, "fc_norm", None)
    return norms if pooled is None or getattr(trunk, "head_dist", None) is not None else [*norms, pooled]


def heads_of(module: nn.Module) -> list[nn.Module]:
    """One head, or two: that of the class token and that of the distillation token. None where the row names none."""
    name, second = family_of(module).head, getattr(module, "head_dist", None)
    return [head for head in (module.get_submodule(name) if name else None, second) if head is not None]


def classes_of(module: nn.Module) -> int:
    """How many classes, or words, a model's head knows; 0 without a head."""
    stated = getattr(module, "num_classes", None)
    if stated is None:
        stated = next((getattr(head, "out_features", 0) for head in heads_of(module)), 0)
    return int(stated)


def absent_points(module: nn.Module) -> dict[str, str]:
    """Points that a model does not have, each with the reason."""
    absent = {}
    for i, block in enumerate(blocks_of(module)):
        if block_row(block).parallel:
            absent[f"blocks.{i}.hook_resid_mid"] = (
                f"{type(block).__name__} runs attention and MLP side by side on the same residual, so there is none "
                "between the two: hook_resid_pre is what both of them read"
            )
    if final_norm(module) is None:
        absent["ln_final.hook_normalized"] = (
            f"{type(module).__name__} has no norm behind its last block: hook_resid_post of that block is its output"
        )
    return absent


def check_model(module: nn.Module) -> str:
    """The family's readable name, or UnsupportedModelError with the reason."""
    family = family_of(module)
    if any(name in text_rows.MODELS for name in _names(module)):
        text_rows.check_configuration(getattr(module, "config", None))
    for part in ("embedding", "blocks", "norm", "head"):
        name = getattr(family, part)
        if family.text or not name:
            continue
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
    row = _row_of(block, BLOCKS, "Block")
    if row.otherwise is not None and not getattr(block, row.flag):
        row = row.otherwise
    attention = block.get_submodule(row.attn)
    if any(name in REFUSED for name in _names(attention)):
        raise _refuse(attention, "Attention", ())
    return row


def mlp_row(mlp: nn.Module) -> tuple[str, str] | None:
    """Names of the children whose inputs are mlp.hook_pre and mlp.hook_post; None where the MLP is of another kind."""
    return next((MLPS[n] for n in _names(mlp) if n in MLPS), None)
