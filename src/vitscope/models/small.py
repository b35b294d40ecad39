"""`small`: the post-norm ViT of the separation study (Varam et al. 2025), on timm's own VisionTransformer.

Its blocks normalise the sum and not the branch, as the first transformers did:

    x = norm1(x + attn(x));  x = norm2(x + mlp(x))

so the stream is normalised after every branch, and there is no norm before the head. Class token and positions start at
zero, dropout is in the MLP alone, and linear layers start as PyTorch draws them.

The study's model has a little more of its own: norms that add 1e-5, one dropout per MLP, and the start of PyTorch's
attention. These are options, and the recipe `small` has them: a run folder of an earlier training names none, and its
weights mean what they meant.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from timm.layers import Attention, DropPath, Mlp
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor, nn

from vitscope.models.naming import describe_pictures, register_model

AttentionInit = Literal["torch", "xavier"]


class PostNormBlock(nn.Module):
    """A block with timm's constructor; options of timm that a post-norm block has no place for are refused."""

    def __init__(
        self,
        dim: int,
        num_heads: int,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        qk_norm: bool = False,
        proj_bias: bool = True,
        proj_drop: float = 0.0,
        attn_drop: float = 0.0,
        drop_path: float = 0.0,
        act_layer: type[nn.Module] = nn.GELU,
        norm_layer: type[nn.Module] = nn.LayerNorm,
        mlp_layer: type[nn.Module] = Mlp,
        attn_layer: type[nn.Module] = Attention,
        init_values: float | None = None,
        scale_attn_norm: bool = False,
        scale_mlp_norm: bool = False,
        depth: int = 0,
        **place: Any,  # device, dtype
    ) -> None:
        super().__init__()
        if init_values is not None or scale_attn_norm or scale_mlp_norm:
            raise TypeError("a post-norm block takes no init_values, scale_attn_norm or scale_mlp_norm")
        self.attn = attn_layer(
            dim,
            num_heads=num_heads,
            qkv_bias=qkv_bias,
            qk_norm=qk_norm,
            proj_bias=proj_bias,
            attn_drop=attn_drop,
            norm_layer=norm_layer,
            **place,
        )
        self.drop_path1 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm1 = norm_layer(dim, **place)
        hidden = round(dim * mlp_ratio)  # int() would cut 99.99.. to 99
        self.mlp = mlp_layer(dim, hidden, act_layer=act_layer, bias=proj_bias, drop=proj_drop, **place)
        self.drop_path2 = DropPath(drop_path) if drop_path > 0 else nn.Identity()
        self.norm2 = norm_layer(dim, **place)

    def forward(self, x: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False) -> Tensor:  # (B, N, C)
        x = self.norm1(x + self.drop_path1(self.attn(x, attn_mask=attn_mask, is_causal=is_causal)))
        return self.norm2(x + self.drop_path2(self.mlp(x)))


def start_as_multihead_attention(attention: Attention) -> None:
    """The start of PyTorch's MultiheadAttention: one Xavier draw for queries, keys and values, biases at zero."""
    nn.init.xavier_uniform_(attention.qkv.weight)
    for bias in (attention.qkv.bias, attention.proj.bias):
        if bias is not None:
            nn.init.zeros_(bias)


@register_model("small")
def small(
    *,
    img_size: int | tuple[int, int] = 28,
    patch_size: int = 7,
    in_chans: int = 1,
    num_classes: int = 10,
    embed_dim: int = 64,
    depth: int = 7,
    num_heads: int = 8,
    mlp_dim: int = 128,
    dropout: float = 0.2,
    dropouts: int = 2,  # per MLP: 1 is the study's, behind the second layer alone
    norm_eps: float = 1e-6,  # timm's; PyTorch's own, which the study leaves as it is, is 1e-5
    attention_init: AttentionInit = "torch",  # 'xavier': as PyTorch's MultiheadAttention starts, which the study has
    **options: Any,  # of timm's VisionTransformer, e.g. drop_path_rate
) -> VisionTransformer:
    """The study's sizes are the defaults; they are made for Fashion-MNIST."""
    if dropouts not in (1, 2):
        raise ValueError(f"dropouts={dropouts}: an MLP has 1 (behind its second layer) or 2 (behind both)")
    if attention_init not in get_args(AttentionInit):
        raise ValueError(f"attention_init={attention_init!r}: expected 'torch' or 'xavier'")
    if not norm_eps > 0:
        raise ValueError(f"norm_eps={norm_eps}: expected a small positive number, such as 1e-5")
    module = VisionTransformer(
        img_size=img_size,
        patch_size=patch_size,
        in_chans=in_chans,
        num_classes=num_classes,
        embed_dim=embed_dim,
        depth=depth,
        num_heads=num_heads,
        mlp_ratio=mlp_dim / embed_dim,
        proj_drop_rate=dropout,
        final_norm=False,  # the last block ends with one
        block_fn=PostNormBlock,
        weight_init="skip",  # timm's deviation of 0.02 is made for wider models
        **options,
    )
    with torch.no_grad():
        for start in (module.cls_token, module.pos_embed, module.reg_token):
            if start is not None:
                start.zero_()
    for part in module.modules():
        if isinstance(part, nn.LayerNorm):
            part.eps = norm_eps
        if isinstance(part, Mlp) and dropouts == 1:
            part.drop1 = nn.Identity()  # type: ignore[assignment]
        if isinstance(part, Attention) and attention_init == "xavier":
            start_as_multihead_attention(part)
    height, width = (img_size, img_size) if isinstance(img_size, int) else img_size
    describe_pictures(module, "small", (in_chans, height, width), first_conv="patch_embed.proj")
    return module
