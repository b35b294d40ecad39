"""Python processes that begin at once, to be killed or to share a run: a new Python imports torch for seconds.

A server, begun once for all tests of a process, imports what most need and does nothing else; every process is a copy
of it. It has no threads (it looks), so that a copy is whole, which one of the test process itself would not be.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

IMPORTED = ("accelerate", "matplotlib.figure", "pandas", "scipy.stats", "timm", "torch.distributed.fsdp", "tyro")


@dataclass(frozen=True)
class Ended:
    """What became of it."""

    codes: list[int]  # one for each process; -9 of one that was killed
    stdout: str  # of all of them
    stderr: str

    @property
    def returncode(self) -> int:
        return next((code for code in self.codes if code), 0)


def run(*words: object, world: int = 1, seconds: float = 240, **how: object) -> Ended:
    """`python WORDS`: `-m module ...`, `-c program ...` or `script.py ...`; several share a run as torchrun's do."""
    return Launched(*words, world=world, **how).wait(seconds)  # type: ignore[arg-type]


class Launched:
    """Processes that have begun."""

    def __init__(
        self, *words: object, world: int = 1, cwd: Path | None = None, env: Mapping[str, str] | None = None
    ) -> None:
        self.folder = Path(tempfile.mkdtemp(dir=_said().name))
        for stream in ("stdout", "stderr"):
            (self.folder / stream).touch()
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **(env or {})}
        ranks: list[dict[str, str]] = [{}]
        if world > 1:
            met = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port(), "WORLD_SIZE": str(world)}
            ranks = [met | {"LOCAL_WORLD_SIZE": str(world), "RANK": r, "LOCAL_RANK": r} for r in map(str, range(world))]
        self._codes = [self.folder / f"code{i}" for i in range(world)]
        self.pids = []
        for rank, code in zip(ranks, self._codes):
            order = {"argv": [str(word) for word in words], "cwd": str(cwd or Path.cwd()), "env": environment | rank}
            self.pids.append(_ask({**order, "folder": str(self.folder), "code": str(code)}))

    def codes(self) -> list[int | None]:
        """Exit codes; None of those that run."""
        return [int(file.read_text()) if file.exists() else None for file in self._codes]

    def running(self) -> bool:
        return None in self.codes()

    def kill(self, number: int = signal.SIGKILL, group: bool = False) -> None:
        """Send the signal to those that run, or also to what they have started."""
        for pid, code in zip(self.pids, self.codes()):
            if code is None:
                with suppress(ProcessLookupError):  # it has ended, and its code is about to be written
                    (os.killpg if group else os.kill)(pid, number)

    def wait(self, seconds: float = 240) -> Ended:
        """Wait for all; where one fails the others are ended, as torchrun does."""
        stop = time.monotonic() + seconds
        while self.running():
            if time.monotonic() > stop:
                self.kill(group=True)
                raise TimeoutError(f"still running after {seconds} seconds: {self.said('stderr')[-2000:]}")
            if any(self.codes()):
                self.kill(signal.SIGTERM)
                stop = min(stop, time.monotonic() + 30)
            time.sleep(0.01)
        return Ended([code or 0 for code in self.codes()], self.said("stdout"), self.said("stderr"))

    def said(self, stream: str) -> str:
        """What all have written so far."""
        return (self.folder / stream).read_text(errors="replace")


def free_port() -> str:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return str(free.getsockname()[1])


@cache
def _said() -> tempfile.TemporaryDirectory[str]:
    """What all processes write; it goes when the tests end."""
    return tempfile.TemporaryDirectory(prefix="launch-")


@cache
def _server() -> socket.socket:
    mine, other = socket.socketpair()
    command = [sys.executable, __file__, str(other.fileno())]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(command, env=environment, pass_fds=[other.fileno()], stdin=subprocess.DEVNULL)
    other.close()

    def end() -> None:
        mine.close()
        process.wait()

    atexit.register(end)
    return mine


def _ask(order: dict[str, object]) -> int:
    """The number of the process that carries the order out."""
    server = _server()
    server.sendall(json.dumps(order).encode() + b"\n")
    answer = server.recv(32)
    assert answer, "the server that starts processes has ended"
    return int(answer)


def _serve(connection: socket.socket) -> None:
    import importlib

    for module in IMPORTED:
        importlib.import_module(module)
    assert len(os.listdir("/proc/self/task")) == 1, "an import has started a thread, which a copy would lack"
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers leave no zombies
    with connection.makefile() as orders:
        for line in orders:
            if not os.fork():
                _keep(json.loads(line), connection)


def _keep(order: dict, connection: socket.socket) -> None:
    """Start the process, tell its number, and write down how it ended."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    pid = os.fork()
    if not pid:
        connection.close()
        _become(order)
    connection.sendall(str(pid).encode())
    connection.close()
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    part = Path(order["code"] + ".part")
    part.write_text(str(code))
    part.rename(order["code"])
    os._exit(0)


def _become(order: dict) -> None:
    """Be `python ARGV`, to the exit code."""
    import runpy
    import threading
    import traceback

    import torch

    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # tests in the background of a shell ignore Ctrl-C
    for number, stream in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{order['folder']}/{stream}", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644), number)
    os.environ.clear()
    os.environ.update(order["env"])
    os.chdir(order["cwd"])
    torch.set_num_threads(int(os.environ["OMP_NUM_THREADS"]))
    first, *rest = order["argv"]
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    code = 1
    try:
        if first == "-m":
            sys.path.insert(0, order["cwd"])
            sys.argv = rest
            runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
        elif first == "-c":
            sys.path.insert(0, "")
            sys.argv = ["-c", *rest[1:]]
            exec(rest[0], vars(sys.modules["__main__"]))
        else:
            sys.path.insert(0, str(Path(first).parent))
            sys.argv = [first, *rest]
            runpy.run_path(first, run_name="__main__")
        code = 0
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        if isinstance(stop.code, str):
            sys.stderr.write(stop.code + "\n")
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
