"""What the tests of the pages share: a folder in which the examples come true."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `blocks` and `desk`, which the tests of this folder share

from desk import lay

from vitscope.architectures.families import MODELS


@pytest.fixture(scope="session")
def desk_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("desk")
    lay(folder)
    return folder


@pytest.fixture(autouse=True)
def _as_it_was(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Weights of timm are random here: nothing is fetched. Modules of the page, families and gradients are put back."""
    import timm

    build, known, grad, families = timm.create_model, set(sys.modules), torch.is_grad_enabled(), dict(MODELS)
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained=False, **options: build(name, **options))
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield
    torch.set_grad_enabled(grad)
    MODELS.clear()
    MODELS.update(families)
    here = str(tmp_path_factory.getbasetemp())
    for name, module in [*sys.modules.items()]:
        if name not in known and (module.__spec__ is None or str(module.__spec__.origin).startswith(here)):
            del sys.modules[name]  # an installed package stays whole
