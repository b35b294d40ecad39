"""The demo: train a small ViT on real digits, look inside it, and put the answer on one page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from vitscope.report.panel import Finding
    from vitscope.runs import Run

DATA = "mnist5k"
NAME = "digits-vit"  # the model's folder, and what the page calls it
# A lens that is added here must leave the demo under three minutes. Every seventh digit is enough for kernel PCA (and
# shows all classes: the digits come in turns of ten).
ANALYSES: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "attention": {},
    "kpca": {"every": 7, "control": "random"},
    "class_space": {"control": "random"},  # the ink of a digit is its mask
    "perturbation": {},
    "probes": {"train": DATA, "train_split": "train", "alphas": [1.0]},
}
PROBES = {"probe": ("kpca.reconstruction",), "probe_every": 2, "probe_images": 100}  # what is watched while it learns


@dataclass(frozen=True)
class DemoResult:
    """What the demo made."""

    report: Path  # the page to open
    findings: list[Finding]  # the three most interesting
    training: Run
    analysis: Run

    @property
    def accuracy(self) -> float:
        """Percent of the held-out digits that the trained model reads correctly."""
        return float(self.analysis.summary["accuracy.top1"]["value"])


def demo(
    out: str | Path = "runs/demo",
    *,
    overwrite: bool = False,
    progress: bool = True,
    command: str | Sequence[str] | None = None,
    **changes: Any,
) -> DemoResult:
    """Train on 4,000 digits, analyse on the 1,000 that were held out, write `out/report.html`.

    Killed and called again it goes on; called once more it only draws the page. `changes` are options of training that
    differ from the recipe `quick`, e.g. epochs=5.
    """
    from vitscope.analyses import analyze
    from vitscope.data import load_data
    from vitscope.models import open_model
    from vitscope.report import build_report, collect_findings
    from vitscope.training import recipe_options, train
    from vitscope.training.checkpoint import LAST, WEIGHTS

    out = Path(out)
    settings = {"out": out / NAME, "label": NAME, "overwrite": overwrite, "progress": progress, **PROBES, **changes}
    training = train(recipe_options("quick", **settings), command=command)
    # `last`, not `best`: the best epoch was chosen on the very images that the accuracy is measured on
    model = open_model(training.path, training.checkpoints_dir / LAST / WEIGHTS)
    analysis = analyze(
        model,
        load_data(DATA, "test"),
        ANALYSES,
        out / "analysis",
        report=False,
        overwrite=overwrite,
        progress=progress,
        command=command,
    )
    assert not isinstance(analysis, list)  # one model, one run
    runs = [analysis, training]
    return DemoResult(build_report(runs, out / "report.html"), collect_findings(runs, 3), training, analysis)
