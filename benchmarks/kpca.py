"""What the kernel-PCA lens costs: ViT-Tiny, 25 images, beside what no implementation can avoid.

    python benchmarks/kpca.py [--weights FILE] [--data FOLDER] [--repeats 9]

Floors: one forward pass plus one batched `eigvalsh` (for the spectrum) or `eigh` (for all five) of every head, on all
cores. The last lines compare with a plain loop over images and heads, in numpy, that computes the same numbers.
Run it alone: two threads on two cores notice everything else.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from itertools import combinations

import numpy as np
import torch
from torch import Tensor

from timing import interleaved, report
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.kpca.gram import centred_gram
from vitscope.analyses.kpca.threads import thread_pool
from vitscope.data.batch import Batch
from vitscope.models import Model, open_model

IMAGES = 25
ALL = ("kpca.spectrum", "kpca.reconstruction", "kpca.norms", "kpca.gamma", "kpca.values")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="random", help="safetensors of vit_tiny_patch16_224; none: random")
    parser.add_argument("--data", help="an ImageNet-style folder; none: noise")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", given.weights)
    batch = load(model, given.data)
    q, k, v = captured(model, batch.images)  # each (12, B, H, N, D)
    matrices = torch.cat([centred_gram(x).matrix.flatten(0, 1) for x in k])  # (900, N, N)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, weights: {given.weights}")

    @torch.no_grad()
    def floor(solve: Callable[[Tensor], object]) -> None:
        model(batch.images)
        list(thread_pool(torch.get_num_threads()).map(solve, matrices.split(25)))

    spectrum = interleaved(
        {
            "forward + eigvalsh": lambda: floor(torch.linalg.eigvalsh),
            "kpca.spectrum": lambda: run(model, batch, ["kpca.spectrum"]),
        },
        given.repeats,
        warmup=1,
    )
    report(spectrum, "forward + eigvalsh", {"kpca.spectrum": 1.3})
    five = interleaved(
        {
            "forward + eigh": lambda: floor(torch.linalg.eigh),
            "all five, no nulls": lambda: run(model, batch, ALL, nulls=False),
            "all five, nulls of V": lambda: run(model, batch, ALL, nulls=True),
        },
        given.repeats,
        warmup=1,
    )
    report(five, "forward + eigh", {"all five, no nulls": 4, "all five, nulls of V": 8})
    seconds = [plain_loop(*(x[block, 0, 0].double().numpy() for x in (q, k, v))) for block in (0, 6, 11)]
    heads = matrices.shape[0]
    whole, ours = float(np.mean(seconds)) * heads, min(five["all five, no nulls"])
    print(f"plain loop, no nulls: {whole:.0f} s ({len(seconds)} of {heads} heads timed), ours {ours:.1f} s: ", end="")
    print(f"{whole / ours:.0f} times faster")


def load(model: Model, folder: str | None) -> Batch:
    if folder is None:
        images = torch.randn(IMAGES, 3, 224, 224, generator=torch.Generator().manual_seed(0))
        names = [f"noise{i}" for i in range(IMAGES)]
        return Batch(images, torch.zeros(IMAGES, dtype=torch.int64), torch.arange(IMAGES), names)
    from vitscope.data import load_data

    data = load_data(folder, "val")
    return next(iter(data.subset(range(0, len(data), len(data) // IMAGES)[:IMAGES]).batches(model.preprocess, IMAGES)))


@torch.no_grad()
def captured(model: Model, images: Tensor) -> list[Tensor]:
    _, cache = model.run_with_cache(images, "blocks.*.attn.hook_[qkv]")
    blocks = range(model.layout.blocks)
    return [torch.stack([cache[f"blocks.{i}.attn.hook_{x}"] for i in blocks]) for x in "qkv"]


def run(model: Model, batch: Batch, names: tuple[str, ...] | list[str], nulls: bool = True) -> None:
    options = {"kpca.values": {"nulls": nulls}}
    measure(model, [batch], [create_analysis(name, **options.get(name, {})) for name in names])


def plain_loop(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> float:
    """Seconds for one head of one image, written down as the formulas read."""
    from scipy.optimize import linear_sum_assignment

    start = time.perf_counter()
    rng = np.random.default_rng(0)
    n, d = k.shape
    s = k @ k.T / np.sqrt(d)
    log_g = np.log(np.exp(s - s.max(1, keepdims=True)).sum(1)) + s.max(1)
    gram = np.exp(s - log_g[:, None] - log_g[None])
    centring = np.eye(n) - 1 / n
    gram = centring @ gram @ centring
    vectors = np.linalg.eigh(gram)[1]
    a = vectors[:, ::-1][:, :d]
    for i in range(n):  # both squared norms
        scores = k @ q[i] / np.sqrt(d)
        weights = np.exp(scores - scores.max())
        _ = np.exp(q[i] @ q[i] / np.sqrt(d) - 2 * (np.log(weights.sum()) + scores.max()))
        _ = ((weights / weights.sum()) @ v) ** 2
    recovered = centring @ (np.exp(log_g - log_g.max())[:, None] * v)
    noisy = np.linalg.qr(a + 0.1 * rng.standard_normal(a.shape))[0]
    for kind in (a, noisy, recovered, rng.standard_normal(a.shape)):
        for axis in range(d):
            gamma = gram @ kind[:, axis] / (n * kind[:, axis])
            pairs = [(abs(x - y), abs(x - y) / max(abs(x), abs(y), 1e-300)) for x, y in combinations(gamma, 2)]
            _ = np.mean(pairs, axis=0), np.std(pairs, axis=0)
    theory = (a - a.mean(0)) / np.exp(log_g)[:, None]
    rows = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (v, theory)]
    cosine = rows[0] @ rows[1].T
    _ = cosine[linear_sum_assignment(cosine, maximize=True)].mean(), np.diag(cosine).mean()
    kernels = []
    for x in (v, theory):
        x = x - x.mean(0)
        squared = ((x[:, None] - x[None]) ** 2).sum(-1)
        kernels.append(
            (
                centring @ (x @ x.T) @ centring,
                centring @ np.exp(-squared / (2 * np.median(squared[squared > 0]))) @ centring,
            )
        )
    for x, y in zip(*kernels):
        _ = (x * y).sum() / (np.linalg.norm(x) * np.linalg.norm(y))
    left, right = (np.linalg.qr(x)[0] for x in (v, theory))
    _ = np.linalg.svd(left.T @ right, compute_uv=False)
    left, right = (np.linalg.qr(x - x.mean(0))[0] for x in (v, theory))
    _ = np.linalg.svd(left.T @ right, compute_uv=False)
    _ = np.linalg.svd((v - v.mean(0)).T @ (theory - theory.mean(0)), compute_uv=False).sum()
    correlation = np.abs(np.corrcoef(v.T, theory.T)[:d, d:])
    _ = correlation[linear_sum_assignment(correlation, maximize=True)].mean()
    return time.perf_counter() - start


if __name__ == "__main__":
    main()
