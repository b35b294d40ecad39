"""Several processes that share one run: who am I, who else is there.

`torchrun --nproc_per_node 2 -m vitscope analyze ...` is all a user types. The processes exchange a few words through
gloo; sums and rows travel through the run folder, which all of them must see.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from vitscope.errors import FirstProcessError

T = TypeVar("T")
PATIENCE = timedelta(days=7)  # a rank may wait for a slower one; a dead one closes its connection


def _leave() -> None:
    """End gloo's threads before the interpreter ends: one that is still there then aborts the process, if rarely."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def local_device(device: str) -> str:
    """`cuda` without a number is this process's own GPU: torchrun numbers the processes of each machine."""
    return f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if device == "cuda" else device


@dataclass(frozen=True)
class Processes:
    """This process's number among `world`. With world == 1 nothing here communicates."""

    rank: int = 0
    world: int = 1
    group: Any = None  # a gloo group of our own, whatever backend the user's main group has

    @classmethod
    def join(cls) -> Processes:
        """Meet the other processes: those of an initialised torch.distributed, or those that torchrun started."""
        import torch.distributed as dist

        if not dist.is_available():
            return cls()
        if not dist.is_initialized():
            if int(os.environ.get("WORLD_SIZE", "1")) <= 1:
                return cls()
            dist.init_process_group("gloo", timeout=PATIENCE)
            atexit.register(_leave)
        if dist.get_world_size() == 1:
            return cls()
        return cls(dist.get_rank(), dist.get_world_size(), dist.new_group(backend="gloo", timeout=PATIENCE))

    @property
    def first(self) -> bool:
        return self.rank == 0

    def barrier(self) -> None:
        """Wait for everyone."""
        if self.world > 1:
            import torch.distributed as dist

            dist.barrier(self.group)

    def first_decides(self, action: Callable[[], T]) -> T:
        """Rank 0 acts and all get its (plain) result; if it fails, the others fail with its message."""
        if self.world == 1:
            return action()
        import torch.distributed as dist

        answer: list[Any] = [None, None]
        failure: BaseException | None = None
        if self.first:
            try:
                answer[0] = action()
            except BaseException as error:  # the others must not wait for an answer that never comes
                failure = error
                answer[1] = f"{error}" or type(error).__name__
        dist.broadcast_object_list(answer, src=0, group=self.group)
        if failure is not None:
            raise failure
        if answer[1] is not None:
            raise FirstProcessError(answer[1])
        return answer[0]
