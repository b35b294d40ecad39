"""Fixtures that every test may use, and the closing line that says how many tests were skipped and why."""

from __future__ import annotations

import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")  # as `make test` does; with more, a forked process hangs in OpenMP
sys.path.insert(0, str(Path(__file__).parent))  # modules that several tests share

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


@pytest.fixture(autouse=True, scope="session")
def _no_waiting_for_the_disk() -> Iterator[None]:
    """Nobody pulls a plug while tests run, and waiting for the disk is a good part of a small run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda fd: None)
        yield


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the clone."""
    return REPOSITORY


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real headless Chromium."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    chromium = next((p for n in ("chromium", "chromium-browser", "google-chrome") if (p := shutil.which(n))), None)
    driver = shutil.which("chromedriver")
    if not chromium or not driver:
        pytest.skip("no Chromium with chromedriver to open pages in")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    flags = "headless=new no-sandbox disable-gpu disable-quic no-first-run disable-background-networking"
    for flag in f"{flags} disable-component-update disable-sync hide-scrollbars force-device-scale-factor=1".split():
        options.add_argument(f"--{flag}")
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('chromium')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    service = webdriver.ChromeService(executable_path=driver, env={**os.environ, "no_proxy": "*"})
    chrome = webdriver.Chrome(options=options, service=service)
    yield chrome
    chrome.quit()


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
