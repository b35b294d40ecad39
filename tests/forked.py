"""Processes that begin as copies of this one, to be killed or to share a run: a new Python imports torch for seconds.

They find each other as those of `torchrun` do, by the environment.
"""

from __future__ import annotations

import importlib
import os
import signal
import socket
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

SHARED = ("accelerate", "matplotlib.figure", "timm", "torch.distributed.fsdp")  # imported here once, not by every copy


@dataclass(frozen=True)
class Ended:
    """What became of the processes."""

    codes: list[int]  # exit codes; -9 of one that was killed
    errors: str  # what they wrote to stderr, all together


def forked(action: Callable[[], object], world: int = 1, **environment: str) -> Ended:
    """Carry `action` out in `world` processes, and wait for them."""
    children = Children(action, world, **environment)
    return children.wait()


class Children:
    """Processes that carry out `action`, from now on."""

    def __init__(self, action: Callable[[], object], world: int = 1, **environment: str) -> None:
        for module in SHARED:
            importlib.import_module(module)
        self._said = tempfile.TemporaryFile()  # noqa: SIM115
        if world > 1:
            environment |= {"WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
            environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
        ranks = [{"RANK": str(r), "LOCAL_RANK": str(r)} if world > 1 else {} for r in range(world)]
        self.pids = [_fork(action, {**environment, **rank}, self._said) for rank in ranks]
        self.codes: dict[int, int] = {}

    def running(self) -> bool:
        """Is one of them still at it?"""
        for pid in self.pids:
            if pid not in self.codes:
                found, status = os.waitpid(pid, os.WNOHANG)
                if found:
                    self.codes[pid] = os.waitstatus_to_exitcode(status)
        return len(self.codes) < len(self.pids)

    def kill(self) -> None:
        for pid in self.pids:
            if pid not in self.codes:
                os.kill(pid, signal.SIGKILL)

    def wait(self, seconds: float = 240) -> Ended:
        stop = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > stop:
                self.kill()
            time.sleep(0.005)
        self._said.seek(0)
        with self._said as said:
            return Ended([self.codes[pid] for pid in self.pids], said.read().decode(errors="replace"))


def script(text: str | Path, *words: str) -> Callable[[], None]:
    """`python SCRIPT WORDS` as an action: a program, or the file that it is in."""

    def run() -> None:
        source, name = (text.read_text(), str(text)) if isinstance(text, Path) else (text, "<script>")
        sys.argv = [name, *words]
        exec(compile(source, name, "exec"), {"__name__": "__main__", "__file__": name})

    return run


def _fork(action: Callable[[], object], environment: Mapping[str, str], said: IO[bytes]) -> int:
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        import torch

        torch.set_num_threads(1)  # OpenMP does not survive a fork with more; torchrun says so, too
        os.dup2(said.fileno(), 2)
        sys.stderr = open(2, "w", closefd=False)  # noqa: SIM115
        os.environ.update(environment)
        action()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])
