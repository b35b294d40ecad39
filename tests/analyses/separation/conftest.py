"""A training that was probed, as tables: profiles that fall from block to block and from epoch to epoch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from vitscope.runs import Run

BLOCKS, EPOCHS = 4, (0, 1, 2, 3)


def probed(pixels: float = 25.0, embedding: float = 250.0, spike: float = 260.0, rho: float = 0.6) -> pd.DataFrame:
    rows = []
    for epoch in EPOCHS:
        for split, worse in (("train", 1.0), ("test", 1.2)):
            shrink = worse * 0.9**epoch
            rows += [(epoch, split, "pixels", "", 0, pixels), (epoch, split, "embedding", "class", 0, np.nan)]
            rows += [(epoch, split, "embedding", "mean", 0, embedding)]
            for layer in range(1, BLOCKS + 1):
                d = spike * shrink * rho ** (layer - 1)
                rows += [(epoch, split, "block", "class", layer, d), (epoch, split, "block", "mean", layer, 0.8 * d)]
            rows += [(epoch, split, "logits", "", BLOCKS + 1, spike * shrink * rho**BLOCKS)]
    table = pd.DataFrame(rows, columns=["epoch", "split", "point", "token", "layer", "fuzziness"])
    return table.assign(defined=table["fuzziness"].notna(), images=500, classes=10, averaging="class")


def training() -> pd.DataFrame:
    epochs = np.array(EPOCHS[1:])
    scores = {"train_loss": 1 / epochs, "test_loss": 1.1 / epochs}
    shares = {"train_accuracy": 1 - 0.2 / epochs, "test_accuracy": 1 - 0.25 / epochs}
    return pd.DataFrame({"epoch": epochs, "lr": 1e-3, **scores, **shares})


def probed_folder(path: Path) -> Run:
    config = {"label": "small", "data": {"name": "fashion-mnist"}, "options": {"seed": 0}}
    with Run.create(path, config, kind="train") as run:
        run.write_table("probe_separation", probed(), allow_nan=["fuzziness"])
        run.write_table("training", training())
        run.finish()
    return run


@pytest.fixture
def probed_run(tmp_path: Path) -> Run:
    return probed_folder(tmp_path / "run")


@pytest.fixture(scope="session")
def reported_run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """The same with its report, without videos. Do not write into it."""
    from vitscope.analyses.separation import outputs
    from vitscope.report import build_report

    run = probed_folder(tmp_path_factory.mktemp("reported") / "run")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outputs, "encoder", lambda: None)
        build_report(run.path, strict=True)
    return Run.open(run.path)
