"""AttentionModule: q, k and v exactly as timm makes them, then a way to attend of one's own.

timm has five attention classes for ViTs. They differ in how q, k, v and a bias come about (one projection or three,
biases beside the weights, q/k-norm, RoPE, relative positions) and agree in everything else; FAN's has two projections.
The forward pass here is the union, under the same parameter names, so that trained weights and checkpoints fit as they
are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, TypedDict, Unpack

import torch
import torch.nn.functional as F
from timm.layers import Attention, apply_rot_embed_cat
from torch import Tensor, nn

from vitscope.attention.registry import build_options, plain_options
from vitscope.errors import UnsupportedModelError, VitscopeError

# What a source module may have, by timm's names. None (or an identity) where a family does without.
_PROJECTIONS = ("qkv", "q_proj", "k_proj", "v_proj", "q", "kv")  # the last two are FAN's
_CHILDREN = (*_PROJECTIONS, "q_norm", "k_norm", "norm", "gate", "rel_pos", "attn_drop", "proj", "proj_drop")
_PARAMETERS = ("q_bias", "v_bias", "relative_position_bias_table")
_BUFFERS = ("k_bias", "relative_position_index")
# A user's hooks on a module that is replaced go on working, and so do the handles that remove them.
HOOKS = (
    "_forward_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs", "_backward_hooks", "_backward_pre_hooks",
)  # fmt: skip


class Look(TypedDict, total=False):
    """What every attention function takes beside q, k and v."""

    mask: Tensor | None  # hides keys: boolean (True may look) or additive (-inf hides)
    bias: Tensor | None  # added to the scores, finite
    is_causal: bool
    dropout_p: float


@dataclass(frozen=True)
class NoOptions:
    """For an attention that has nothing to choose."""


class AttentionModule(nn.Module):
    """Subclass with `attend` (and `Options`), decorate with `@register_attention("name")`: every ViT can have it.

    The constructor is that of timm's `Attention`, followed by the fields of `Options` as keyword arguments.
    `from_timm` takes over a module of a built model instead, with its weights.
    """

    name: ClassVar[str] = ""
    Options: ClassVar[type] = NoOptions

    options: Any
    qkv: nn.Linear | None
    q_proj: nn.Module | None
    k_proj: Any
    v_proj: Any
    q: nn.Module | None
    kv: nn.Linear | None
    q_norm: nn.Module
    k_norm: nn.Module
    norm: nn.Module
    gate: nn.Module | None
    rel_pos: Any
    attn_drop: nn.Dropout
    proj: nn.Linear
    proj_drop: nn.Module
    q_bias: Tensor | None
    k_bias: Tensor | None
    v_bias: Tensor | None
    relative_position_bias_table: Tensor | None
    relative_position_index: Any

    def __init__(
        self,
        dim: int,
        num_heads: int = 8,
        attn_head_dim: int | None = None,
        dim_out: int | None = None,
        qkv_bias: bool = False,
        qk_norm: bool = False,
        scale_norm: bool = False,
        proj_bias: bool = True,
        gated: bool = False,
        attn_drop: float = 0.0,
        proj_drop: float = 0.0,
        norm_layer: type[nn.Module] | None = None,
        device: Any = None,
        dtype: Any = None,
        **options: Any,
    ) -> None:
        super().__init__()
        checked = build_options(type(self), options)
        source = Attention(
            dim, num_heads, attn_head_dim, dim_out, qkv_bias, qk_norm, scale_norm, proj_bias, gated,
            attn_drop, proj_drop, norm_layer, device, dtype,
        )  # fmt: skip
        self._take_over(source, checked)

    @classmethod
    def from_timm(cls, source: nn.Module, options: Any) -> AttentionModule:
        """The same attention layer, attending in another way: its modules and parameters are used, not copied."""
        new = cls.__new__(cls)
        nn.Module.__init__(new)
        new._take_over(source, options)
        return new

    # --- what a variant says of itself ----------------------------------------------------------------------------

    @property
    def symmetric(self) -> bool:
        """Queries are keys: there is no query projection."""
        return False

    @property
    def attention_calls(self) -> int:
        """Calls of attention (fused or explicit) in a forward pass. The last makes the output: capture shows it."""
        return 1

    def create_parameters(self) -> None:
        """Parameters of the variant's own; the projections are in place when this is called."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor, **look: Unpack[Look]) -> Tensor:
        """(B, H, N, D) each -> (B, H, N, D). Where `symmetric` holds, q is k.

        Built on `softmax_attention` or, where it is no softmax, on `explicit_attention`: there capture reads and edits.
        """
        raise NotImplementedError

    # --- what all variants share ----------------------------------------------------------------------------------

    def _take_over(self, source: Any, options: Any) -> None:
        self.options = options
        for name in _CHILDREN:
            default = nn.Identity() if name in ("q_norm", "k_norm", "norm") else None
            self.add_module(name, getattr(source, name, default))
        for name in _PARAMETERS:
            self.register_parameter(name, getattr(source, name, None))
        for name in _BUFFERS:
            self.register_buffer(name, getattr(source, name, None), persistent=False)
        for name in HOOKS:
            setattr(self, name, getattr(source, name))
        self.num_heads = int(source.num_heads)
        self.attn_dim = int(self.proj.in_features)
        self.head_dim = self.attn_dim // self.num_heads  # BEiT's attention does not keep it
        self.scale = self.head_dim**-0.5
        self.fused_attn = True
        self.num_kv_groups = int(getattr(source, "num_kv_groups", 1))
        self.num_prefix_tokens = int(getattr(source, "num_prefix_tokens", 0))  # not rotated by RoPE
        self.rotate_half = bool(getattr(source, "rotate_half", False))
        self.qkv_bias_separate = bool(getattr(source, "qkv_bias_separate", False))
        if self.symmetric and not getattr(source, "symmetric", False):
            self._drop_queries()
        elif getattr(source, "symmetric", False) and not self.symmetric:
            raise UnsupportedModelError(
                f"{self.name!r} needs queries, but an earlier conversion to {source.name!r} has dropped their "
                "projection. Convert the model as it was before."
            )
        self.create_parameters()
        self.train(source.training)

    def _drop_queries(self) -> None:
        """Keep the weights of keys and values. A projection without a gradient would stall distributed training."""
        if self.num_kv_groups > 1:
            raise UnsupportedModelError(
                f"{self.name!r} makes queries of keys, and this model shares keys among groups of heads: the heads of "
                "a group would become copies of each other. Choose an attention that keeps its queries."
            )
        self.q_norm = nn.Identity()
        self.q_proj = self.q = None
        self.q_bias = None
        if self.qkv is not None:
            self.qkv = _rows(self.qkv, self.attn_dim)  # (3A, C) -> (2A, C): keys first, then values

    def forward(
        self,
        x: Tensor,
        rope: Tensor | None = None,
        attn_mask: Tensor | None = None,
        is_causal: bool = False,
        shared_rel_pos: Tensor | None = None,  # of timm's models with relative positions
        shared_rel_pos_bias: Tensor | None = None,  # of BEiT
    ) -> Tensor:
        """(B, N, C) -> (B, N, C)"""
        q, k, v = self._project(x)  # (B, H, N, D) each
        q, k = self.q_norm(q), self.k_norm(k)
        if rope is not None:
            q, k = self._rotate(q, rope).type_as(v), self._rotate(k, rope).type_as(v)
        if self.num_kv_groups > 1:
            k, v = (t.repeat_interleave(self.num_kv_groups, dim=1) for t in (k, v))
        z = self.attend(
            k if self.symmetric else q,
            k,
            v,
            mask=attn_mask,
            bias=self._bias(shared_rel_pos, shared_rel_pos_bias),
            is_causal=is_causal,
            dropout_p=self.attn_drop.p if self.training else 0.0,
        )  # (B, H, N, D)
        if z.shape[:3] != q.shape[:3]:
            raise VitscopeError(f"{type(self).__name__}.attend returned {tuple(z.shape)}: expected {tuple(q.shape)}.")
        z = self.norm(z.transpose(1, 2).flatten(2))  # (B, N, A)
        if self.gate is not None:
            z = z * self.gate(x).sigmoid()
        return self.proj_drop(self.proj(z))

    def _project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """q, k, v (B, H, N, D) each, before norms and RoPE; q is k where queries are keys."""
        if self.kv is not None:
            k, v = map(self._heads, self.kv(x).chunk(2, dim=-1))
            return (k if self.q is None else self._heads(self.q(x))), k, v
        if self.qkv is None:
            k, v = self._heads(self.k_proj(x)), self._heads(self.v_proj(x))
            return (k if self.q_proj is None else self._heads(self.q_proj(x))), k, v
        if self.v_bias is None:
            qkv = self.qkv(x)
        else:  # BEiT and EVA learn biases for queries and values and keep a zero for keys
            bias = torch.cat([b for b in (self.q_bias, self.k_bias, self.v_bias) if b is not None])
            qkv = self.qkv(x) + bias if self.qkv_bias_separate else F.linear(x, self.qkv.weight, bias)
        parts = [self._heads(part) for part in qkv.split(self.attn_dim, dim=-1)]
        return parts[0], parts[-2], parts[-1]

    def _heads(self, x: Tensor) -> Tensor:
        """(B, N, H * D) -> (B, H, N, D)"""
        return x.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)

    def _rotate(self, x: Tensor, rope: Tensor) -> Tensor:
        prefix, image = x.split([self.num_prefix_tokens, x.shape[2] - self.num_prefix_tokens], dim=2)
        return torch.cat([prefix, apply_rot_embed_cat(image, rope, half=self.rotate_half)], dim=2)

    def _bias(self, shared: Tensor | None, shared_beit: Tensor | None) -> Tensor | None:
        """The bias on the scores that timm's fused path adds, (1, H, N, N); None where a model has none."""
        if self.rel_pos is not None:
            return self.rel_pos.get_bias()
        if self.relative_position_bias_table is None:
            return shared if shared is not None else shared_beit
        index = self.relative_position_index
        own = self.relative_position_bias_table[index.flatten()].unflatten(0, index.shape)  # (N, N, H)
        own = own.permute(2, 0, 1).unsqueeze(0)
        return own if shared_beit is None else own + shared_beit

    def extra_repr(self) -> str:
        return ", ".join(f"{key}={value}" for key, value in plain_options(self.options).items())


def _rows(linear: Any, start: int) -> nn.Linear:
    """A linear layer with the rows of another from `start` on. Built on `meta`, so that no random number is drawn."""
    weight = linear.weight[start:]
    part = nn.Linear(weight.shape[1], weight.shape[0], bias=linear.bias is not None, device="meta")
    part.weight = nn.Parameter(weight.detach().clone(), requires_grad=linear.weight.requires_grad)
    if linear.bias is not None:
        part.bias = nn.Parameter(linear.bias[start:].detach().clone(), requires_grad=linear.bias.requires_grad)
    return part.train(linear.training)
