"""Work on all cores: images are dealt out to threads, each of which runs its share single-threaded.

torch does not parallelise batched `eigh`, `qr`, `svd` or sorts of short rows on the CPU, and an assignment problem is
one thread by nature. All of them release the GIL, so plain threads over images use every core. Chunks are small, which
also keeps the N x N matrices of a few heads, not those of a whole batch, in memory at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

ENTRIES = 250_000  # of the Gram matrices of a chunk: 6 heads of 197 tokens, 2 MB, stay in the cache between two steps

WORTH_IT = 30_000  # entries below which a chunk costs more to hand over than to compute

_pools: dict[int, ThreadPoolExecutor] = {}
_one_at_a_time = threading.Lock()


def thread_pool(threads: int) -> ThreadPoolExecutor:
    """So many threads with one intra-op thread each. They are kept: to make them costs as much as a small block.

    torch remembers a number of threads per thread; a new thread takes over, at its first use of torch, the number that
    anyone set last. So these begin while it is one, and then it is again what it was.
    """
    with _one_at_a_time:
        if threads not in _pools:
            here = torch.get_num_threads()
            everyone = threading.Barrier(threads)
            pool = ThreadPoolExecutor(threads, "kpca", initializer=torch.get_num_threads)
            torch.set_num_threads(1)
            try:
                list(pool.map(lambda _: everyone.wait(), range(threads)))
            finally:
                torch.set_num_threads(here)
            _pools[threads] = pool
        return _pools[threads]


def over_images(function: Callable[..., dict[str, Tensor]], *tensors: Tensor) -> dict[str, Tensor]:
    """`function(*tensors)` computed in chunks along the first dimension, on as many threads as torch may use.

    Every tensor has the images first, and so has every tensor that `function` returns; the first is (B, H, N, D). Off
    the CPU, the device parallelises by itself and `function` gets everything at once.
    """
    first = tensors[0]
    if first.device.type != "cpu":
        return function(*tensors)
    images, heads, tokens = first.shape[:3]
    fit, worth = (entries // (heads * tokens * tokens) for entries in (ENTRIES, WORTH_IT))
    fair = images // (8 * torch.get_num_threads())  # eight chunks per thread at least, so that none waits for long
    chunks = list(zip(*(t.split(max(1, min(fit, max(fair, worth)))) for t in tensors)))

    def run(chunk: tuple[Tensor, ...]) -> dict[str, Tensor]:
        with torch.no_grad():  # grad mode belongs to a thread
            return function(*chunk)

    parts = list(thread_pool(torch.get_num_threads()).map(run, chunks))
    return {key: torch.cat([part[key] for part in parts]) for key in parts[0]}
