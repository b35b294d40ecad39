"""Fixtures that every test may use, and the closing line that says how many tests were skipped and why."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent


def shared_folder() -> Path:
    """Where the test material lies that is no part of the project (real weights, real images)."""
    return Path(os.environ.get("VITSCOPE_SHARED") or REPOSITORY.parent / "shared")


@pytest.fixture(scope="session")
def shared() -> Path:
    folder = shared_folder()
    if not folder.is_dir():
        pytest.skip("no test material beside the project (set VITSCOPE_SHARED to its folder)")
    return folder


@pytest.fixture(autouse=True)
def _registries() -> Iterator[None]:
    """What a test registers is forgotten after it."""
    from vitscope.registry import ALL

    with ExitStack() as stack:
        for registry in ALL:
            stack.enter_context(registry.restored())
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the clone."""
    return REPOSITORY


def skip_reasons(reports: list[Any]) -> Counter[str]:
    """Skipped tests by reason. A skipped report carries (file, line, 'Skipped: reason')."""
    reasons: Counter[str] = Counter()
    for report in reports:
        text = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
        reasons[text.removeprefix("Skipped: ")] += 1
    return reasons


def pytest_terminal_summary(terminalreporter: Any) -> None:
    reasons = skip_reasons(terminalreporter.getreports("skipped"))
    terminalreporter.write_line("")
    terminalreporter.write_line(f"skipped tests: {reasons.total()}")
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"  {count:4d}  {reason}")
