"""What looking inside costs: ratios to the plain fused forward pass of vit_tiny_patch16_224, batch 16.

    python benchmarks/capture.py

What is kept is not copied, but it cannot be used again: the 145 MB of one pass are new pages of memory in the next one.
`bare hooks` shows what that costs alone. Where the C library is told not to give freed memory back to the system, it
costs nothing: MALLOC_TRIM_THRESHOLD_=1000000000 MALLOC_MMAP_THRESHOLD_=1000000000 python benchmarks/capture.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from timing import interleaved, report
from vitscope.models import open_model

RESIDUALS_AND_QKV = ["blocks.*.hook_resid_*", "blocks.*.attn.hook_[qkv]"]
PATTERNS = "blocks.*.attn.hook_pattern"


def bare_hooks(module: nn.Module, images: Tensor) -> list[Tensor]:
    """Hold on to residuals and q, k, v with hooks that do nothing else: less is not possible."""
    kept: list[Tensor] = []
    hooks = []
    for block in module.blocks:  # type: ignore[union-attr]
        hooks.append(block.register_forward_hook(lambda m, a, out: kept.append(out)))
        hooks.append(block.norm2.register_forward_pre_hook(lambda m, a: kept.append(a[0])))
        hooks.append(block.attn.qkv.register_forward_hook(lambda m, a, out: kept.append(out)))
    module(images)
    for hook in hooks:
        hook.remove()
    return kept


@torch.inference_mode()
def main() -> None:
    torch.manual_seed(0)
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random")
    images = torch.randn(16, 3, 224, 224)
    contenders = {
        "plain forward": lambda: model.module(images),
        "bare hooks": lambda: bare_hooks(model.module, images),
        "residuals + q, k, v, kept": lambda: model.run_with_cache(images, RESIDUALS_AND_QKV),
        "residuals + q, k, v, block by block": lambda: model.stream(images, RESIDUALS_AND_QKV, lambda b, p: None),
        "all patterns, kept": lambda: model.run_with_cache(images, PATTERNS),
        "all patterns, block by block": lambda: model.stream(images, PATTERNS, lambda b, p: None),
    }
    bounds = dict(zip(list(contenders)[2:], (1.12, 1.05, 1.35, 1.35)))
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    report(interleaved(contenders, repeats=15), "plain forward", bounds)


if __name__ == "__main__":
    main()
