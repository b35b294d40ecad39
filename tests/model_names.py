"""The names over which the tests of models and capture are generated: at least one of every kind that opens."""

SUPPORTED = [
    # timm's Attention, pre-norm blocks; heads of 64 and of other sizes
    "vit_tiny_patch16_224", "vit_tiny_patch16_384", "vit_small_patch16_224", "vit_small_patch32_224",
    "vit_small_patch16_36x1_224", "vit_base_patch16_224", "vit_base_patch32_224", "vit_base_patch16_plus_240",
    "vit_base_patch32_plus_256", "vit_base_patch16_224_miil", "vit_large_patch32_224", "vit_medium_patch16_gap_256",
    "vit_medium_patch16_gap_240", "vit_base_patch16_gap_224", "vit_betwixt_patch16_gap_256", "flexivit_small",
    "flexivit_base", "test_vit", "test_vit2", "test_vit4", "vit_huge_patch14_224",
    # hybrid patch embeddings
    "vit_tiny_r_s16_p8_224", "vit_small_r26_s32_224", "vit_small_resnet26d_224", "vitamin_small_224",
    # post-norm blocks
    "vit_base_patch16_rpn_224", "vit_relpos_small_patch16_rpn_224", "vit_relpos_medium_patch16_rpn_224",
    # post-norm blocks that normalise the sum: vitscope's own
    "small",
    # a class token that joins behind the blocks, two projections, channels weighed in the place of an MLP: ours, too
    "fan_tiny_12_p16_224",
    # registers, with and without class token
    "vit_wee_patch16_reg1_gap_256", "vit_little_patch16_reg4_gap_256", "vit_medium_patch16_reg1_gap_256",
    "vit_mediumd_patch16_reg4_gap_256", "vit_betwixt_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_gap_256",
    # deit, deit3 (LayerScale), distilled (two class tokens, two heads)
    "deit_tiny_patch16_224", "deit_small_patch16_224", "deit_base_patch16_224", "deit_tiny_distilled_patch16_224",
    "deit_small_distilled_patch16_224", "deit3_small_patch16_224", "deit3_medium_patch16_224",
    # self-supervised
    "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2", "vit_base_patch14_reg1_tipsv2",
    "aimv2_large_patch14_224", "vit_small_patch16_dinov3", "vit_small_patch16_dinov3_qkvb",
    "vit_tiny_patch16_dinov3_qkvb", "vit_small_plus_patch16_dinov3",
    # EvaAttention: fused, split q/k/v, with bias, scale norm, SwiGLU; AttentionRope; mixed RoPE
    "eva02_tiny_patch14_224", "eva02_small_patch14_224", "eva02_base_patch14_224", "eva02_base_patch16_clip_224",
    "eva02_enormous_patch14_clip_224", "eva_large_patch14_196", "vit_small_patch16_rope_224",
    "vit_small_patch16_rope_ape_224", "vit_small_patch16_rope_mixed_224", "vit_small_patch16_rope_mixed_ape_224",
    "vit_medium_patch16_rope_reg1_gap_256", "vit_betwixt_patch16_rope_reg4_gap_256", "vit_pe_core_base_patch16_224",
    # BEiT: relative position bias, gamma_1; beit3: scale norm
    "beit_base_patch16_224", "beitv2_base_patch16_224", "beit3_base_patch16_224",
    # relative positions: RelPosAttention, shared bias, with and without class token
    "vit_relpos_small_patch16_224", "vit_relpos_medium_patch16_cls_224", "vit_relpos_base_patch16_clsgap_224",
    "vit_srelpos_small_patch16_224",
    # clip, siglip
    "vit_xsmall_patch16_clip_224", "vit_medium_patch16_clip_224", "vit_base_patch32_clip_224",
    "vit_base_patch16_clip_quickgelu_224", "vit_base_patch16_siglip_224", "vit_base_patch16_siglip_gap_224",
    "vit_base_mci_224", "test_vit3",
]  # fmt: skip

# built smaller than they are, so that the tests stay quick; the architecture is untouched
SMALLER: dict[str, dict[str, int]] = {
    "eva02_enormous_patch14_clip_224": {"embed_dim": 256, "num_heads": 4},
    "vit_huge_patch14_224": {"embed_dim": 320, "num_heads": 4},
    "aimv2_large_patch14_224": {"embed_dim": 256, "num_heads": 2},
    "vit_small_patch14_dinov2": {"img_size": 224},
    "vit_small_patch14_reg4_dinov2": {"img_size": 224},
    "vit_base_patch14_reg1_tipsv2": {"img_size": 224},
    "vit_tiny_patch16_384": {"img_size": 320},
}

REFUSED = [
    "vit_base_patch16_xp_224", "vit_small_patch16_18x2_224", "vit_dwee_patch16_reg1_gap_256",
    "vit_dpwee_patch16_reg1_gap_256", "vit_pwee_patch16_reg1_gap_256", "samvit_base_patch16",
    "swin_tiny_patch4_window7_224", "swinv2_tiny_window8_256", "swinv2_cr_tiny_224", "hiera_tiny_224",
    "sam2_hiera_tiny", "mvitv2_tiny", "cait_xxs24_224", "xcit_nano_12_p16_224", "naflexvit_base_patch16_gap",
]  # fmt: skip
