"""One small random model of every kind of attention that can be converted: two or three blocks, nothing zero."""

from __future__ import annotations

import timm
import torch

FAMILIES = {
    # Attention: plain; q/k-norm, no bias, registers, no class token; distilled; post-norm
    "plain": ("vit_tiny_patch16_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "qk_norm": (
        "vit_wee_patch16_reg1_gap_256",
        {"img_size": 64, "embed_dim": 48, "num_heads": 3, "qk_norm": True, "qkv_bias": False},
    ),
    "distilled": ("deit_tiny_distilled_patch16_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "post_norm": ("vit_base_patch16_rpn_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    # EvaAttention: one projection with biases beside it; three projections and a norm; registers and another RoPE
    "eva02": ("eva02_tiny_patch14_224", {"img_size": 56, "embed_dim": 48, "num_heads": 3}),
    "eva02_split": ("eva02_base_patch14_224", {"img_size": 56, "embed_dim": 48, "num_heads": 3, "qk_norm": True}),
    "dinov3": ("vit_small_patch16_dinov3_qkvb", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    # AttentionRope: axial, mixed (another rotation in every block), registers
    "rope": ("vit_small_patch16_rope_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "rope_mixed": ("vit_small_patch16_rope_mixed_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "rope_registers": ("vit_medium_patch16_rope_reg1_gap_256", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    # BEiT: a bias table in every block; one shared table
    "beit": ("beit_base_patch16_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "beit_shared": (
        "beit_base_patch16_224",
        {"img_size": 64, "embed_dim": 48, "num_heads": 3, "use_rel_pos_bias": False, "use_shared_rel_pos_bias": True},
    ),
    # RelPosAttention: MLP and table, own and shared
    "relpos": ("vit_relpos_small_patch16_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "relpos_class": ("vit_relpos_medium_patch16_cls_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
    "relpos_shared": ("vit_srelpos_small_patch16_224", {"img_size": 64, "embed_dim": 48, "num_heads": 3}),
}


def build(family: str = "plain", depth: int = 2, seed: int = 0, **options):
    name, smaller = FAMILIES[family]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = timm.create_model(name, depth=depth, num_classes=5, **{**smaller, **options})
    generator = torch.Generator().manual_seed(seed + 1)
    with torch.no_grad():
        for parameter in module.parameters():  # biases and tables that start at zero would hide errors
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module.eval()


def images_for(module, batch: int = 2, dtype=torch.float32):
    size = module.patch_embed.img_size
    return torch.randn(batch, 3, *size, generator=torch.Generator().manual_seed(7)).to(dtype)
