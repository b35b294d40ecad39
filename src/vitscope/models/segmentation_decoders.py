"""From patches to classes of patches: the two decoders of Segmenter (Strudel et al. 2021, arXiv 2105.05633).

Parameters bear the published names, so that published weights fit as they are.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from timm.layers import trunc_normal_
from timm.models.vision_transformer import Block
from torch import Tensor, nn

DEVIATION = 0.02  # of initial weights


def _start(module: nn.Module) -> None:
    """Linear layers start as published: normal, biases at zero."""
    for part in module.modules():
        if isinstance(part, nn.Linear):
            trunc_normal_(part.weight, std=DEVIATION)
            if part.bias is not None:
                nn.init.zeros_(part.bias)


class LinearDecoder(nn.Module):
    """One linear layer, patch by patch."""

    def __init__(self, width: int, num_classes: int) -> None:
        super().__init__()
        self.head = nn.Linear(width, num_classes)
        _start(self)

    def forward(self, patches: Tensor) -> Tensor:
        """(B, T, C) -> (B, T, K)"""
        return self.head(patches)


class MaskDecoder(nn.Module):
    """Patches and one learnt embedding per class attend to each other; a patch's logits are its cosines with classes.

        x = [P W_dec, E];  x = blocks(x);  P', E' = norm(x);  logits = LayerNorm_K(cos(P' A, E' B))

    The last norm goes over the classes: logits of a patch have mean and deviation of its weights, not their own.
    """

    def __init__(
        self, encoder_width: int, num_classes: int, width: int, depth: int, heads: int, dropout: float = 0.1
    ) -> None:
        super().__init__()
        self.num_classes = num_classes
        blocks = [
            Block(
                width,
                heads,
                qkv_bias=True,
                proj_drop=dropout,
                attn_drop=dropout,
                norm_layer=nn.LayerNorm,  # which adds 1e-5, as published; timm's own adds 1e-6
            )
            for _ in range(depth)
        ]
        self.blocks = nn.ModuleList(blocks)
        self.cls_emb = nn.Parameter(torch.empty(1, num_classes, width))
        self.proj_dec = nn.Linear(encoder_width, width)
        self.proj_patch = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.proj_classes = nn.Parameter(width**-0.5 * torch.randn(width, width))
        self.decoder_norm = nn.LayerNorm(width)
        self.mask_norm = nn.LayerNorm(num_classes)
        _start(self)
        trunc_normal_(self.cls_emb, std=DEVIATION)

    def forward(self, patches: Tensor) -> Tensor:
        """All patches of pictures (B, T, C) -> (B, T, K)"""
        x = torch.cat([self.proj_dec(patches), self.cls_emb.expand(len(patches), -1, -1)], 1)  # (B, T + K, D)
        for block in self.blocks:
            x = block(x)
        patches, classes = self.decoder_norm(x).split([patches.shape[1], self.num_classes], 1)
        patches = F.normalize(patches @ self.proj_patch, dim=-1)  # (B, T, D)
        classes = F.normalize(classes @ self.proj_classes, dim=-1)  # (B, K, D)
        return self.mask_norm(patches @ classes.transpose(1, 2))
