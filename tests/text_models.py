"""A tiny text model of every family, with random weights that are nowhere zero."""

from __future__ import annotations

from typing import Any

import torch
import transformers

SIZES = {
    "vocab_size": 60, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
ROBERTA = {**SIZES, "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 2, "max_position_embeddings": 42}
GROUPED = {**SIZES, "num_key_value_heads": 2}
PARALLEL = {**SIZES, "use_parallel_residual": True}
IN_TURN = {**SIZES, "use_parallel_residual": False}
OPT = {**SIZES, "ffn_dim": 48, "word_embed_proj_dim": 32, "pad_token_id": 1}

# name -> (configuration, model, sizes)
FAMILIES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertConfig", "BertForMaskedLM", SIZES),
    "bert without head": ("BertConfig", "BertModel", SIZES),
    "roberta": ("RobertaConfig", "RobertaForMaskedLM", ROBERTA),
    "xlm-roberta": ("XLMRobertaConfig", "XLMRobertaForMaskedLM", ROBERTA),
    "camembert": ("CamembertConfig", "CamembertForMaskedLM", ROBERTA),
    "electra": ("ElectraConfig", "ElectraForMaskedLM", {**SIZES, "embedding_size": 16}),
    "distilbert": (
        "DistilBertConfig",
        "DistilBertForMaskedLM",
        {"vocab_size": 60, "dim": 32, "n_layers": 2, "n_heads": 4, "hidden_dim": 48, "max_position_embeddings": 40},
    ),
    "modernbert": (
        "ModernBertConfig",
        "ModernBertForMaskedLM",
        {**SIZES, "pad_token_id": 0, "global_attn_every_n_layers": 2, "local_attention": 6, "cls_token_id": 1,
         "sep_token_id": 2, "bos_token_id": 1, "eos_token_id": 2},
    ),
    "gpt2": ("GPT2Config", "GPT2LMHeadModel", {"vocab_size": 60, "n_embd": 32, "n_layer": 2, "n_head": 4,
             "n_positions": 40, "scale_attn_by_inverse_layer_idx": True, "bos_token_id": 0, "eos_token_id": 0}),
    "gpt-neox": ("GPTNeoXConfig", "GPTNeoXForCausalLM", PARALLEL),
    "gpt-neox in turn": ("GPTNeoXConfig", "GPTNeoXForCausalLM", IN_TURN),
    "llama": ("LlamaConfig", "LlamaForCausalLM", GROUPED),
    "llama without head": ("LlamaConfig", "LlamaModel", GROUPED),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", GROUPED),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {**GROUPED, "head_dim": 8}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {**GROUPED, "sliding_window": 4}),
    "gemma3": (
        "Gemma3TextConfig",
        "Gemma3ForCausalLM",
        {**GROUPED, "head_dim": 8, "sliding_window": 4, "query_pre_attn_scalar": 20,
         "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "opt": ("OPTConfig", "OPTForCausalLM", OPT),
    "opt-350m": ("OPTConfig", "OPTForCausalLM", {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 16}),
}  # fmt: skip


def build(name: str) -> Any:
    """A module in evaluation mode, with a jitter on all weights: biases and gains that start at 0 or 1 hide errors."""
    config_class, model_class, sizes = FAMILIES[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = getattr(transformers, config_class)(**sizes, attn_implementation="sdpa")
        module = getattr(transformers, model_class)(config)
        with torch.no_grad():
            for parameter in module.parameters():
                parameter += 0.15 * torch.randn_like(parameter)
    return module.eval()


def texts(lengths: tuple[int, ...] = (9, 5)) -> dict[str, torch.Tensor]:
    """Numbers of tokens, padded at the right."""
    generator = torch.Generator().manual_seed(1)
    ids = torch.randint(5, 60, (len(lengths), max(lengths)), generator=generator)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        mask[row, :length] = 1
        ids[row, length:] = 1
    return {"input_ids": ids, "attention_mask": mask}
