"""Attention: softmax, symmetric, RPC, scaled, standardised; each a pure function of q, k, v, then a module for any ViT.

`convert(model, "rpc", layers="0", iterations=4)` changes a built model; `vitscope.attention.description` writes down
what was changed so that a run can be opened again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.attention.conversion import attn_layer as attn_layer
    from vitscope.attention.conversion import convert as convert
    from vitscope.attention.conversion import create_with_attn_layer as create_with_attn_layer
    from vitscope.attention.conversion import parse_layers as parse_layers
    from vitscope.attention.description import convert_from_description as convert_from_description
    from vitscope.attention.description import describe_attention as describe_attention
    from vitscope.attention.description import parse_attention as parse_attention
    from vitscope.attention.explicit import explicit_attention as explicit_attention
    from vitscope.attention.module import AttentionModule as AttentionModule
    from vitscope.attention.registry import create_attention as create_attention
    from vitscope.attention.registry import list_attentions as list_attentions
    from vitscope.attention.registry import register_attention as register_attention
    from vitscope.attention.rpc import RPCAttention as RPCAttention
    from vitscope.attention.rpc import rpc_attention as rpc_attention
    from vitscope.attention.scaled import ScaledAttention as ScaledAttention
    from vitscope.attention.scaled import scaled_attention as scaled_attention
    from vitscope.attention.softmax import SoftmaxAttention as SoftmaxAttention
    from vitscope.attention.softmax import softmax_attention as softmax_attention
    from vitscope.attention.standardised import StandardisedAttention as StandardisedAttention
    from vitscope.attention.standardised import standardised_attention as standardised_attention
    from vitscope.attention.symmetric import SymmetricAttention as SymmetricAttention
    from vitscope.attention.symmetric import symmetric_attention as symmetric_attention

__getattr__, __dir__, __all__ = lazy(__name__)
