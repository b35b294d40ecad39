"""Rows of the text models of Hugging Face's transformers, under the names of their classes: nothing is imported.

Their attentions all call `scaled_dot_product_attention` through transformers' "sdpa" interface, once per layer. What
does not, or has no such layers, is refused here with its reason.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from vitscope.architectures.rows import BlockRow, Family
from vitscope.errors import UnsupportedModelError

# package -> how the names of its classes begin; what is in one list is built alike
BERT_KIN = {
    "bert": "Bert",
    "roberta": "Roberta",
    "xlm_roberta": "XLMRoberta",
    "camembert": "Camembert",
    "electra": "Electra",
}
LLAMA_KIN = {"llama": "Llama", "qwen2": "Qwen2", "qwen3": "Qwen3", "mistral": "Mistral"}

# x = norm(x + branch), attention and MLP spread over several modules
BERT_LAYER = BlockRow(
    summed="attention.output.LayerNorm",
    attn="attention.self",
    mlp="",
    attn_added="attention.output.dropout",
    mlp_added="output.dropout",
    attn_out="attention.output.dense",
    mlp_out="output.dense",
    attn_proj="attention.output.dense",
)
LLAMA_LAYER = BlockRow(
    mid="post_attention_layernorm",
    attn="self_attn",
    attn_added="self_attn",
    mlp_added="mlp",
    attn_proj="self_attn.o_proj",
)
NEOX_LAYER = BlockRow(
    attn="attention", attn_added="post_attention_dropout", mlp_added="post_mlp_dropout", attn_proj="attention.dense"
)
OPT_LAYER = BlockRow(
    mid="final_layer_norm",
    attn="self_attn",
    mlp="",
    attn_added="self_attn",
    mlp_added="fc2",
    mlp_out="fc2",
    attn_proj="self_attn.out_proj",
    flat=True,
    scale=1.0,  # its queries are scaled before
)
BERT_MLP = ("intermediate.intermediate_act_fn", "output.dense")
LLAMA_MLP = ("act_fn", "down_proj")


def _class(package: str, name: str) -> str:
    return f"transformers.models.{package}.modeling_{package}.{name}"


BLOCKS: dict[str, BlockRow] = {
    **{_class(package, f"{name}Layer"): BERT_LAYER for package, name in BERT_KIN.items()},
    _class("distilbert", "TransformerBlock"): BlockRow(
        summed="sa_layer_norm",
        attn="attention",
        mlp="ffn",
        attn_added="attention",
        mlp_added="ffn",
        attn_proj="attention.out_lin",
    ),
    _class("modernbert", "ModernBertEncoderLayer"): BlockRow(
        mid="mlp_norm", attn_added="attn", mlp_added="mlp", attn_proj="attn.Wo"
    ),
    _class("gpt2", "GPT2Block"): BlockRow(mid="ln_2", attn_added="attn", mlp_added="mlp", attn_proj="attn.c_proj"),
    _class("gpt_neox", "GPTNeoXLayer"): replace(
        NEOX_LAYER, flag="use_parallel_residual", otherwise=replace(NEOX_LAYER, mid="post_attention_layernorm")
    ),
    **{_class(package, f"{name}DecoderLayer"): LLAMA_LAYER for package, name in LLAMA_KIN.items()},
    _class("gemma3", "Gemma3DecoderLayer"): BlockRow(
        mid="pre_feedforward_layernorm",
        attn="self_attn",
        attn_added="post_attention_layernorm",
        mlp_added="post_feedforward_layernorm",
        attn_proj="self_attn.o_proj",
        attn_steps=("post_attention_layernorm",),
        mlp_steps=("post_feedforward_layernorm",),
    ),
    _class("opt", "OPTDecoderLayer"): replace(
        OPT_LAYER,
        flag="do_layer_norm_before",
        otherwise=replace(OPT_LAYER, mid="", summed="self_attn_layer_norm"),  # OPT-350m alone
    ),
}

# a block that spreads its MLP over several modules has a row of its own here
MLPS: dict[str, tuple[str, str]] = {
    **{_class(package, f"{name}Layer"): BERT_MLP for package, name in BERT_KIN.items()},
    _class("distilbert", "FFN"): ("activation", "lin2"),
    _class("modernbert", "ModernBertMLP"): ("act", "Wo"),
    _class("gpt2", "GPT2MLP"): ("act", "c_proj"),
    _class("gpt_neox", "GPTNeoXMLP"): ("act", "dense_4h_to_h"),
    **{_class(package, f"{name}MLP"): LLAMA_MLP for package, name in LLAMA_KIN.items()},
    _class("gemma3", "Gemma3MLP"): LLAMA_MLP,
    _class("opt", "OPTDecoderLayer"): ("activation_fn", "fc2"),
}


def _through(*names: str) -> Callable[[Any, Tensor], Tensor]:
    """Tokens pass some modules of the model, one after the other. One that is None is left out."""

    def transform(module: Any, x: Tensor) -> Tensor:
        parts = dict(module.named_modules())
        for name in names:
            x = parts[name](x) if name in parts else x
        return x

    return transform


def _layout(module: Any) -> Any:
    from vitscope.architectures.text_layout import text_layout

    return text_layout(module)


NO_HEAD = (
    "its weights have no vocabulary head (transformers would make up a random one), so a token has no way to words; "
    "give a checkpoint of a causal or masked language model"
)


def _models(title: str, package: str, base: str, with_head: str, under: str, row: Family) -> dict[str, Family]:
    """The rows of a bare model and of the same with its head, where it lies `under` a name."""
    row = replace(row, title=title, layout=_layout, headless=NO_HEAD, text=True)
    bare = replace(row, head="", transform=None, answer=lambda output: output.last_hidden_state)
    places: dict[str, Any] = {
        part: f"{under}.{getattr(row, part)}" for part in ("embedding", "blocks", "norm") if getattr(row, part)
    }
    whole = replace(row, **places, answer=lambda output: output.logits)
    return {_class(package, base): bare, _class(package, with_head): whole}


_BERT = Family("", "embeddings.word_embeddings", "encoder.layer", norm="")
_ROBERTA = replace(
    _BERT,
    head="lm_head.decoder",
    transform=lambda module, x: module.lm_head.layer_norm(F.gelu(module.lm_head.dense(x))),
)
_LLAMA = Family("", "embed_tokens", "layers", head="lm_head", call={"use_cache": False})

MODELS: dict[str, Family] = {
    **_models(
        "BERT", "bert", "BertModel", "BertForMaskedLM", "bert",
        replace(_BERT, head="cls.predictions.decoder", transform=_through("cls.predictions.transform")),
    ),
    **_models("RoBERTa", "roberta", "RobertaModel", "RobertaForMaskedLM", "roberta", _ROBERTA),
    **_models("XLM-RoBERTa", "xlm_roberta", "XLMRobertaModel", "XLMRobertaForMaskedLM", "roberta", _ROBERTA),
    **_models("CamemBERT", "camembert", "CamembertModel", "CamembertForMaskedLM", "roberta", _ROBERTA),
    **_models(
        "ELECTRA", "electra", "ElectraModel", "ElectraForMaskedLM", "electra",
        replace(_BERT, head="generator_lm_head", transform=_through("generator_predictions")),
    ),
    **_models(
        "DistilBERT", "distilbert", "DistilBertModel", "DistilBertForMaskedLM", "distilbert",
        replace(
            _BERT, blocks="transformer.layer", head="vocab_projector",
            transform=_through("vocab_transform", "activation", "vocab_layer_norm"),
        ),
    ),
    **_models(
        "ModernBERT", "modernbert", "ModernBertModel", "ModernBertForMaskedLM", "model",
        Family("", "embeddings.tok_embeddings", "layers", "final_norm", "decoder", transform=_through("head")),
    ),
    **_models(
        "GPT-2", "gpt2", "GPT2Model", "GPT2LMHeadModel", "transformer",
        replace(_LLAMA, embedding="wte", blocks="h", norm="ln_f"),
    ),
    **_models(
        "GPT-NeoX", "gpt_neox", "GPTNeoXModel", "GPTNeoXForCausalLM", "gpt_neox",
        replace(_LLAMA, embedding="embed_in", norm="final_layer_norm"),
    ),
    **_models("Llama", "llama", "LlamaModel", "LlamaForCausalLM", "model", _LLAMA),
    **_models("Qwen2", "qwen2", "Qwen2Model", "Qwen2ForCausalLM", "model", _LLAMA),
    **_models("Qwen3", "qwen3", "Qwen3Model", "Qwen3ForCausalLM", "model", _LLAMA),
    **_models("Mistral", "mistral", "MistralModel", "MistralForCausalLM", "model", _LLAMA),
    **_models("Gemma 3", "gemma3", "Gemma3TextModel", "Gemma3ForCausalLM", "model", _LLAMA),
    **_models(
        "OPT", "opt", "OPTModel", "OPTForCausalLM", "model",
        replace(
            _LLAMA, embedding="decoder.embed_tokens", blocks="decoder.layers", norm="decoder.final_layer_norm",
            transform=_through("model.decoder.project_out"),
        ),
    ),
}  # fmt: skip

# model_type of a configuration -> the kind of head that its checkpoints have
HEADS: dict[str, str] = {
    **dict.fromkeys(
        ("bert", "roberta", "xlm-roberta", "camembert", "electra", "distilbert", "modernbert"), "masked"
    ),
    **dict.fromkeys(("gpt2", "gpt_neox", "llama", "qwen2", "qwen3", "mistral", "gemma3_text", "opt"), "causal"),
}  # fmt: skip

_NO_CALL = "its attention is not computed by scaled_dot_product_attention, where q, k and v are read"
_EXPERTS = "its MLPs are mixtures of experts: tokens take different ways, and 'the' MLP of a block does not exist"

REFUSED: dict[str, str] = {
    "longformer": f"Longformer attends within windows of its own making: {_NO_CALL}",
    "luke": f"LUKE attends between words and entities in four ways: {_NO_CALL}",
    "mpnet": f"MPNet adds relative positions by hand: {_NO_CALL}",
    "deberta": f"DeBERTa adds scores of content and position: {_NO_CALL}",
    "deberta_v2": f"DeBERTa adds scores of content and position: {_NO_CALL}",
    "gpt_neo": f"GPT-Neo does not scale its scores, and {_NO_CALL}",
    "albert": "ALBERT runs one and the same block again and again: 'the' points of block 3 are not its own",
    "t5": "T5 has an encoder and a decoder with cross-attention: its layers are no single list of blocks",
    "mt5": "T5 has an encoder and a decoder with cross-attention: its layers are no single list of blocks",
    "bart": "BART has an encoder and a decoder with cross-attention: its layers are no single list of blocks",
    "gemma3": "it takes pictures and text together: give the text model alone (model_type gemma3_text)",
    **dict.fromkeys(("mixtral", "qwen2_moe", "qwen3_moe", "olmoe", "phimoe", "gpt_oss", "deepseek_v3"), _EXPERTS),
}
_OF_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def why_refused(name: str) -> str | None:
    """The reason why a class of transformers is refused, by its qualified name; None for any other class."""
    parts = name.split(".")
    if parts[:2] != ["transformers", "models"] or name in MODELS or name in BLOCKS:
        return None
    return REFUSED.get(parts[2])


def check_configuration(config: Any) -> None:
    """Refuse what a configuration says that a row cannot know: a kind, experts, another way of computing."""
    kind = str(getattr(config, "model_type", ""))
    reason = None if kind in HEADS else REFUSED.get(kind.replace("-", "_"))
    if any(getattr(config, name, None) for name in _OF_EXPERTS):
        reason = _EXPERTS
    elif reason is None and kind not in HEADS:
        reason = f"vitscope knows the text models {', '.join(HEADS)}"
    elif getattr(config, "add_cross_attention", False):
        reason = "its blocks attend to a second text, too (add_cross_attention): they have two attentions"
    elif getattr(config, "chunk_size_feed_forward", 0):
        reason = "its MLPs run piece by piece (chunk_size_feed_forward): set that to 0, the numbers are the same"
    if reason:
        raise UnsupportedModelError(f"Text model {kind!r} is not supported: {reason}.")
    implementation = getattr(config, "_attn_implementation", None)
    if implementation not in (None, "sdpa"):
        raise UnsupportedModelError(
            f"This {kind} computes attention as {implementation!r}; q, k and v are read where "
            "scaled_dot_product_attention is called: load it with attn_implementation='sdpa'."
        )
