"""Where a run was made: enough to make it again."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

PACKAGES = (
    "vitscope", "torch", "torchvision", "timm", "accelerate", "safetensors", "numpy", "pandas", "matplotlib", "pillow",
)  # fmt: skip


def describe_environment(config: Mapping[str, Any], command: str | Sequence[str] | None = None) -> dict[str, Any]:
    """Versions, seed, device, command line, git state of the current directory, data fingerprint."""
    return {
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command_line(command),
        "directory": str(Path.cwd()),
        "git": git_state(Path.cwd()),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "processors": os.cpu_count(),
        "world_size": int(os.environ.get("WORLD_SIZE", "1")),
        "versions": {name: version for name in PACKAGES if (version := package_version(name))},
        "seed": find(config, "seed"),
        "device": find(config, "device"),
        "data_fingerprint": find(config, "fingerprint"),
    }


def command_line(command: str | Sequence[str] | None = None) -> str:
    """What to type to run this again. The command line passes itself; otherwise it is this process's."""
    if isinstance(command, str):
        return command
    return shlex.join(command if command is not None else sys.argv)


def git_state(directory: Path) -> dict[str, Any] | None:
    """Commit, branch and whether anything is changed, of the repository that holds `directory`; None outside one."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(
                ["git", "-C", str(directory), *args], capture_output=True, text=True, timeout=10, check=False
            )
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("rev-parse", "--is-inside-work-tree") != "true":
        return None
    changed = git("status", "--porcelain")
    return {
        "commit": git("rev-parse", "HEAD"),  # None before the first commit
        "branch": git("rev-parse", "--abbrev-ref", "HEAD"),
        "changed_files": len(changed.splitlines()) if changed is not None else None,
    }


def find(config: Any, key: str) -> Any:
    """The value of `key` at the shallowest place of a nested configuration, or None."""
    level = [config]
    while level:
        mappings = [c for c in level if isinstance(c, Mapping)]
        for mapping in mappings:
            if mapping.get(key) is not None:
                return mapping[key]
        level = [v for m in mappings for v in m.values()]
    return None


def package_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
