"""Attention: softmax, symmetric, RPC and scaled, each first a pure function of q, k, v, then a module for any ViT.

`convert(model, "rpc", layers="0", iterations=4)` changes a built model; `vitscope.attention.description` writes down
what was changed so that a run can be opened again.
"""

from vitscope.attention.conversion import attn_layer, convert, create_with_attn_layer, parse_layers
from vitscope.attention.description import convert_from_description, describe_attention, parse_attention
from vitscope.attention.module import AttentionModule
from vitscope.attention.registry import create_attention, list_attentions, register_attention
from vitscope.attention.rpc import RPCAttention, rpc_attention
from vitscope.attention.scaled import ScaledAttention, scaled_attention
from vitscope.attention.softmax import SoftmaxAttention, softmax_attention
from vitscope.attention.symmetric import SymmetricAttention, symmetric_attention

__all__ = [
    "AttentionModule",
    "RPCAttention",
    "ScaledAttention",
    "SoftmaxAttention",
    "SymmetricAttention",
    "attn_layer",
    "convert",
    "convert_from_description",
    "create_attention",
    "create_with_attn_layer",
    "describe_attention",
    "list_attentions",
    "parse_attention",
    "parse_layers",
    "register_attention",
    "rpc_attention",
    "scaled_attention",
    "softmax_attention",
    "symmetric_attention",
]
