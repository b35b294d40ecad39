"""What looking inside costs: ratios to the plain fused forward pass of vit_tiny_patch16_224, batch 16.

python benchmarks/capture.py
"""

from __future__ import annotations

import torch

from timing import interleaved, report
from vitscope.models import open_model

RESIDUALS_AND_QKV = ["blocks.*.hook_resid_*", "blocks.*.attn.hook_[qkv]"]
PATTERNS = "blocks.*.attn.hook_pattern"


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random")
    images = torch.randn(16, 3, 224, 224)
    contenders = {
        "plain forward": lambda: model.module(images),
        "residuals + q, k, v, kept": lambda: model.run_with_cache(images, RESIDUALS_AND_QKV),
        "residuals + q, k, v, block by block": lambda: model.stream(images, RESIDUALS_AND_QKV, lambda b, p: None),
        "all patterns, kept": lambda: model.run_with_cache(images, PATTERNS),
        "all patterns, block by block": lambda: model.stream(images, PATTERNS, lambda b, p: None),
    }
    bounds = dict(zip(list(contenders)[1:], (1.12, 1.05, 1.35, 1.35)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    report(interleaved(contenders, repeats=15), "plain forward", bounds)


if __name__ == "__main__":
    main()
