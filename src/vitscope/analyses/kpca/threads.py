"""Work on all cores: images are dealt out to threads, each of which runs its share single-threaded.

torch does not parallelise batched `eigh`, `qr`, `svd` or sorts of short rows on the CPU, and an assignment problem is
one thread by nature. All of them release the GIL, so plain threads over images use every core. Chunks are small, which
also keeps the N x N matrices of a few heads, not those of a whole batch, in memory at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor

ENTRIES = 250_000  # of the Gram matrices of a chunk: 6 heads of 197 tokens, 2 MB, stay in the cache between two steps

_one_at_a_time = threading.Lock()  # torch.set_num_threads is global, so two callers must not interleave


@contextmanager
def single_threaded_torch() -> Iterator[int]:
    """One intra-op thread inside the block; yields how many there were before, and gives them back."""
    with _one_at_a_time:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            yield threads
        finally:
            torch.set_num_threads(threads)


def over_images(function: Callable[..., dict[str, Tensor]], *tensors: Tensor) -> dict[str, Tensor]:
    """`function(*tensors)` computed in chunks along the first dimension, on as many threads as torch may use.

    Every tensor has the images first, and so has every tensor that `function` returns; the first is (B, H, N, D). Off
    the CPU, the device parallelises by itself and `function` gets everything at once.
    """
    first = tensors[0]
    if first.device.type != "cpu":
        return function(*tensors)
    images, heads, tokens = first.shape[:3]
    fit = ENTRIES // (heads * tokens * tokens)
    fair = -(-images // (2 * torch.get_num_threads()))  # two chunks per thread at least, so that none waits for long
    chunks = list(zip(*(t.split(max(1, min(fit, fair))) for t in tensors)))

    def run(chunk: tuple[Tensor, ...]) -> dict[str, Tensor]:
        with torch.no_grad():  # grad mode belongs to a thread
            return function(*chunk)

    with single_threaded_torch() as threads, ThreadPoolExecutor(threads) as pool:
        parts = list(pool.map(run, chunks))
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
