"""FAN (Zhou et al., ICML 2022): blocks that weigh tokens and channels, and a class token that joins behind them.

Under the parameter names of the published checkpoints (NVlabs/FAN). Tokens pass the blocks alone; a class token is then
put before them, and two blocks of class attention, in which it alone asks, carry what they know to the head.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models.xcit import ClassAttentionBlock
from torch import Tensor, nn

from vitscope.models.fan_parts import NORM_EPS, DepthwisePair, FANBlock, FourierPositions, Stem
from vitscope.models.naming import describe_pictures, register_model

DEVIATION = 0.02  # of the initial linear weights and of the class token


class FAN(nn.Module):
    """(B, C, H, W) -> logits (B, classes)"""

    num_prefix_tokens = 0  # in the blocks: the class token comes later

    def __init__(
        self,
        img_size: int | tuple[int, int] = 224,
        patch_size: int = 16,  # or 8 or 4: as many convolutions of stride 2 as that takes
        in_chans: int = 3,
        num_classes: int = 1000,
        embed_dim: int = 192,
        depth: int = 12,
        num_heads: int = 4,
        mlp_ratio: float = 4.0,
        class_depth: int = 2,  # blocks of class attention behind the others
        drop_rate: float = 0.0,
        attn_drop_rate: float = 0.0,
        drop_path_rate: float = 0.0,  # in every block the same
    ) -> None:
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim={embed_dim} cannot be divided among num_heads={num_heads}")
        if num_classes < 0 or class_depth < 1:
            raise ValueError(f"num_classes={num_classes}, class_depth={class_depth}: expected at least 0 and 1")
        size = (img_size, img_size) if isinstance(img_size, int) else (img_size[0], img_size[1])
        self.num_classes, self.embed_dim = num_classes, embed_dim
        self.patch_embed = Stem(size, patch_size, in_chans, embed_dim)
        self.pos_embed = FourierPositions(embed_dim)
        self.pos_drop = nn.Dropout(drop_rate)
        grid = self.patch_embed.grid_size
        rates = {"drop": drop_rate, "attn_drop": attn_drop_rate, "drop_path": drop_path_rate}
        self.blocks = nn.ModuleList(FANBlock(embed_dim, num_heads, mlp_ratio, grid, **rates) for _ in range(depth))
        self.cls_token = nn.Parameter(torch.zeros(1, 1, embed_dim))
        norm: Any = partial(nn.LayerNorm, eps=NORM_EPS)
        class_block = partial(ClassAttentionBlock, embed_dim, num_heads, mlp_ratio, qkv_bias=True, norm_layer=norm)
        self.cls_attn_blocks = nn.ModuleList(
            class_block(proj_drop=drop_rate, attn_drop=attn_drop_rate, tokens_norm=True) for _ in range(class_depth)
        )
        self.norm = norm(embed_dim)
        self.head = nn.Linear(embed_dim, num_classes) if num_classes else nn.Identity()
        self._start()

    def _start(self) -> None:
        """Linear layers and class token normal within two deviations, depth-wise convolutions as He et al. have it."""
        nn.init.trunc_normal_(self.cls_token, std=DEVIATION)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.trunc_normal_(part.weight, std=DEVIATION)
                nn.init.zeros_(part.bias)
            elif isinstance(part, DepthwisePair):
                for convolution in (part.conv1, part.conv2):
                    nn.init.normal_(convolution.weight, std=(2 / 9) ** 0.5)  # each output has 3 x 3 weights
                    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]

    def no_weight_decay(self) -> set[str]:
        return {"cls_token"}

    def forward(self, x: Tensor) -> Tensor:
        x = self.pos_drop(self.patch_embed(x) + self.pos_embed(self.patch_embed.grid_size))  # (B, N, C)
        for block in self.blocks:
            x = block(x)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1)  # (B, 1 + N, C)
        for block in self.cls_attn_blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))


def _fan(name: str, **options: Any) -> FAN:
    module: Any = FAN(**options)
    size = (module.patch_embed.proj[0][0].in_channels, *module.patch_embed.img_size)
    colours = {"mean": IMAGENET_DEFAULT_MEAN, "std": IMAGENET_DEFAULT_STD} if size[0] == 3 else {}
    describe_pictures(module, name, size, first_conv="patch_embed.proj.0.0", **colours)
    return module


@register_model("fan_tiny_12_p16_224")
def fan_tiny_12_p16_224(*, embed_dim: int = 192, num_heads: int = 4, **options: Any) -> FAN:
    """7.3 million weights."""
    return _fan("fan_tiny_12_p16_224", embed_dim=embed_dim, num_heads=num_heads, **options)


@register_model("fan_small_12_p16_224")
def fan_small_12_p16_224(*, embed_dim: int = 384, num_heads: int = 8, **options: Any) -> FAN:
    """Twice as wide: 28 million weights."""
    return _fan("fan_small_12_p16_224", embed_dim=embed_dim, num_heads=num_heads, **options)
