"""What RPC-Attention costs beside symmetric attention, and what the fused step saves beside an explicit softmax.

python benchmarks/attention.py          heads of 64, 4 iterations, N = 197 (224 x 224) and N = 1,025 (512 x 512)
python benchmarks/attention.py --tokens 256      causal, 8 heads of 16, 4 iterations: a layer of the language model

Ratios of minima and medians of interleaved repeats; peak memory is exact. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from timing import interleaved
from vitscope.attention import rpc_attention, symmetric_attention
from vitscope.attention.peak import peak_memory
from vitscope.attention.rpc import VARIANTS

ITERATIONS, LAMBDA, HEADS, SIZE = 4, 4.0, 3, 64
BATCH = {197: 8, 1025: 1}
CAUSAL, CAUSAL_OVERHEAD, CAUSAL_SHAPE = 256, 1.7, (16, 8, 16)  # N; the bound; batch, heads, head size
# RPC <= bound * n * symmetric
OVERHEAD = {197: 1.6, 1025: 1.35}
# explicit / fused, at least
SPEEDUP = {197: {"forward": 0.9, "forward + backward": 0.9}, 1025: {"forward": 1.4, "forward + backward": 1.1}}
MEMORY = 1 / 3  # fused / explicit at N = 1,025, at most


def explicit_rpc(k: Tensor, v: Tensor) -> Tensor:
    """`variant="code"` with every N x N matrix formed, as a first version would be written."""
    tokens, width = k.shape[-2], k.shape[-3] * k.shape[-1]
    mu = tokens * width / 4 / k.abs().sum((-2, -1), keepdim=True)
    low = y = torch.zeros_like(k)
    for _ in range(ITERATIONS):
        s = k - low + y / mu
        s = s.sign() * (s.abs() - LAMBDA * mu).clamp_min(0)
        clean = k - s - y / mu
        low = (clean @ clean.transpose(-2, -1) * SIZE**-0.5).softmax(-1) @ v
        y = y + mu * (k - low - s)
    return low


def passes(function: Callable[[Tensor, Tensor], Tensor], k: Tensor, v: Tensor) -> dict[str, Callable[[], object]]:
    """A forward pass as in inference, and one with its backward pass."""

    def forward() -> object:
        with torch.inference_mode():
            return function(k, v)

    def both() -> object:
        k.grad = v.grad = None
        return function(k, v).sum().backward()

    return {"forward": forward, "forward + backward": both}


def line(what: str, minima: float, medians: float, bound: float, at_most: bool) -> None:
    kept = minima <= bound if at_most else minima >= bound
    sign = "<=" if at_most else ">="
    print(f"  {what:<58} {minima:7.3f} {medians:7.3f}   {sign} {bound:.3f}  {'kept' if kept else 'MISSED'}")


def compare(tokens: int, repeats: int) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (BATCH[tokens], tokens, 2, HEADS, SIZE)
    both = torch.randn(shape, generator=generator)  # laid out as a projection leaves it
    k, v = (part.permute(0, 2, 1, 3).detach().requires_grad_() for part in both.unbind(2))
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "symmetric": symmetric_attention,
        "explicit": explicit_rpc,
        **{
            variant: partial(rpc_attention, iterations=ITERATIONS, lambd=LAMBDA, variant=variant)
            for variant in VARIANTS
        },
    }
    torch.testing.assert_close(functions["code"](k, v), explicit_rpc(k, v), rtol=1e-3, atol=1e-4)
    print(
        f"\nN = {tokens:,}, batch {BATCH[tokens]}, {HEADS} heads of {SIZE}, {ITERATIONS} iterations, {repeats} repeats"
    )
    print(f"  {'':<58} {'minima':>7} {'medians':>7}")
    for mode in ("forward", "forward + backward"):
        seconds = interleaved({name: passes(f, k, v)[mode] for name, f in functions.items()}, repeats)

        def ratio(a: str, b: str, times: dict[str, list[float]] = seconds) -> tuple[float, float]:
            return min(times[a]) / min(times[b]), statistics.median(times[a]) / statistics.median(times[b])

        for variant in VARIANTS:
            minima, medians = ratio(variant, "symmetric")
            bound = OVERHEAD[tokens]
            what = f"{mode}: {variant} / ({ITERATIONS} x symmetric)"
            line(what, minima / ITERATIONS, medians / ITERATIONS, bound, at_most=True)
        line(f"{mode}: explicit / code", *ratio("explicit", "code"), SPEEDUP[tokens][mode], at_most=False)
    k.grad = v.grad = None  # what was allocated before would otherwise be released inside the measurement
    for mode in ("forward", "forward + backward"):
        peaks = {name: peak_memory(passes(functions[name], k, v)[mode]) for name in ("code", "explicit")}
        share = peaks["code"] / peaks["explicit"]
        what = f"{mode}: peak memory, {peaks['code'] / 1e6:.1f} of {peaks['explicit'] / 1e6:.1f} MB"
        if tokens == max(BATCH):
            line(what, share, share, MEMORY, at_most=True)
        else:
            print(f"  {what:<58} {share:7.3f}")


def compare_causal(repeats: int) -> None:
    """RPC with prefix means beside causal symmetric attention, and what is kept for the backward pass."""
    batch, heads, size = CAUSAL_SHAPE
    both = torch.randn(batch, CAUSAL, 2, heads, size, generator=torch.Generator().manual_seed(0))
    k, v = (part.permute(0, 2, 1, 3).detach().requires_grad_() for part in both.unbind(2))
    functions: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
        "symmetric": partial(symmetric_attention, is_causal=True),
        **{
            variant: partial(rpc_attention, iterations=ITERATIONS, lambd=LAMBDA, variant=variant, is_causal=True)
            for variant in VARIANTS
            if variant != "code"  # its mu is over all tokens
        },
    }
    print(f"\nN = {CAUSAL}, causal, batch {batch}, {heads} heads of {size}, {ITERATIONS} iterations, {repeats} repeats")
    print(f"  {'':<58} {'minima':>7} {'medians':>7}")
    for mode in ("forward", "forward + backward"):
        seconds = interleaved({name: passes(f, k, v)[mode] for name, f in functions.items()}, repeats)
        base = seconds.pop("symmetric")
        for variant, times in seconds.items():
            minima, medians = min(times) / min(base), statistics.median(times) / statistics.median(base)
            what = f"{mode}: {variant} / ({ITERATIONS} x symmetric)"
            line(what, minima / ITERATIONS, medians / ITERATIONS, CAUSAL_OVERHEAD, at_most=True)
    for name, function in functions.items():
        kept: dict[int, int] = {}  # by where they lie: what two operations keep is there once

        def keep(x: Tensor, kept: dict[int, int] = kept) -> Tensor:
            kept[x.untyped_storage().data_ptr()] = x.untyped_storage().nbytes()
            return x

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
            function(k, v)
        matrix = 4 * batch * heads * CAUSAL**2
        total, largest = sum(kept.values()) / 1e6, max(kept.values()) / 1e6
        print(f"  {name}: {total:.1f} MB kept for the backward pass, the largest tensor {largest:.1f} MB; "
              f"an N x N matrix per head would be {matrix / 1e6:.1f} MB")  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--tokens", type=int, nargs="+", default=[*BATCH, CAUSAL], choices=[*BATCH, CAUSAL])
    options = parser.parse_args()
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads")
    for tokens in options.tokens:
        compare_causal(options.repeats) if tokens == CAUSAL else compare(tokens, options.repeats)


if __name__ == "__main__":
    main()
