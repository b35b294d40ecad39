"""first_look.png: four digits, and what each patch of them says in class space, block by block.

    python docs/figures/first_look.py

Trains the recipe `quick` (about a minute) in a folder for temporary files.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import matplotlib
import torch

import vitscope
from vitscope.training.recipes import recipe_options

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).resolve().parent
DIGITS = 4


def identifiability(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """r = 1 - rank/K of the true class: (B, N, K), (B,) -> (B, N)."""
    true = logits.gather(-1, labels[:, None, None].expand(-1, logits.shape[1], 1))
    return 1 - (logits > true).float().mean(-1)


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = vitscope.train(recipe_options("quick", out=f"{folder}/digits", progress=False))
        model = vitscope.open_model(run.path)
    data = vitscope.load_data("mnist5k", "test", images=DIGITS)
    batch = next(data.batches(model.preprocess, batch_size=DIGITS))
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.*.hook_resid_post")
        blocks = [identifiability(model.to_class_space(x), batch.labels) for x in cache.values()]  # (B, 17) each
    figure, axes = plt.subplots(DIGITS, 1 + len(blocks), figsize=(7.2, 6.2), layout="constrained")
    for row, image in zip(axes, range(DIGITS)):
        row[0].imshow(data[image].image, cmap="gray")
        for number, (ax, r) in enumerate(zip(row[1:], blocks)):
            shown = ax.imshow(r[image, 1:].reshape(4, 4), vmin=0, vmax=1, cmap="viridis")
            ax.set_xlabel(f"class token {r[image, 0]:.1f}", fontsize=8)
            if image == 0:
                ax.set_title(f"after block {number}", fontsize=9)
        for ax in row:
            ax.set_xticks([])
            ax.set_yticks([])
    axes[0, 0].set_title("digit", fontsize=9)
    figure.colorbar(shown, ax=axes, shrink=0.5, label="identifiability of the true digit")
    figure.savefig(HERE / "first_look.png", dpi=110)


if __name__ == "__main__":
    main()
