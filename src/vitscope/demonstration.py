"""The demo: train two small models on real data, look inside, disturb them, and put the answer on one page.

`demo` has ViTs, digits and attacks; `demo_text` language models, help topics, swapped words and typos;
`demo_segmentation` segmenters and scenes of digits, clean and corrupted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitscope.data import load_data
from vitscope.report import build_report, collect_findings
from vitscope.report.panel import Finding
from vitscope.runs import Run

DATA = "mnist5k"
# the models' folders, what the page calls them, and their attention; the first one is looked into
MODELS = {"digits-vit": "", "digits-rpc": "rpc:layers=0,iterations=4"}
# A lens that is added here must leave the demo under four minutes. Every eleventh digit is enough for kernel PCA (and
# shows all classes: the digits come in turns of ten).
ANALYSES: dict[str, dict[str, Any]] = {
    "accuracy": {},
    "attention": {},
    "kpca": {"every": 11, "control": "random"},
    "class_space": {"control": "random"},  # the ink of a digit is its mask
    "perturbation": {},
    "probes": {"train": DATA, "train_split": "train", "alphas": [1.0]},
}
# what is watched while it learns
PROBES = {"probe": ("kpca.reconstruction", "separation"), "probe_every": 2, "probe_images": 200}


# ink is white on black and an attacker needs much: a fifth of the range leaves digits that people still read
ATTACKS: dict[str, Any] = {
    "attacks": ("noise", "fgsm", "pgd"),
    "eps": "0.05,0.1,0.15,0.2",
    "steps": 10,
    "batch_size": 100,
}
ATTACKED = 200  # digits, 20 of each


TEXTS = "pydoc"
TEXT_MODELS = {"text-softmax": "", "text-rpc": "rpc:layers=0,iterations=2,variant=paper"}
TEXT_ANALYSES: dict[str, dict[str, Any]] = {"attention": {}, "vocabulary": {}, "kpca": {"every": 4}}
WINDOWS: dict[str, Any] = {"unit": "windows", "context": 128}
SWAPPED: dict[str, Any] = {"swap": True, "noise": 0.02, "batch_size": 16}


SCENES = "digit-scenes"
SCENE_MODELS = {"scenes-softmax": "", "scenes-rpc": "symmetric; rpc:layers=0,iterations=6,lambda=4"}
SCENE_ANALYSES: dict[str, dict[str, Any]] = {"patches": {}}
SCENES_SEEN = 200  # of the held-out ones
# those that need no further package, in the middle of their range
CORRUPTED: dict[str, Any] = {"corrupt": ("gaussian_noise", "defocus_blur", "contrast"), "severities": ("1", "3")}


@dataclass(frozen=True)
class Made:
    """What all demos make."""

    report: Path  # the page to open
    findings: list[Finding]  # the three most interesting
    trainings: list[Run]  # with softmax and with RPC attention
    analysis: Run  # of the first


@dataclass(frozen=True)
class DemoResult(Made):
    """What the demo with digits made."""

    attacks: list[Run]  # on both

    @property
    def accuracy(self) -> float:
        """Percent of the held-out digits that the trained model reads correctly."""
        return float(self.analysis.summary["accuracy.top1"]["value"])


def _trained(recipe: str, attentions: Mapping[str, str], out: Path, settings: dict[str, Any]) -> tuple[list[Run], list]:
    """A model of the recipe with each attention: their trainings, at the same time, and the models opened."""
    from vitscope.models import open_model
    from vitscope.training import recipe_options
    from vitscope.training.checkpoint import LAST, WEIGHTS
    from vitscope.training.side_by_side import train_side_by_side

    wanted = [recipe_options(recipe, out=out / n, label=n, attention=a, **settings) for n, a in attentions.items()]
    trainings = train_side_by_side(wanted)
    # `last`, not `best`: the best epoch was chosen on the very images that the accuracy is measured on
    return trainings, [open_model(run.path, run.checkpoints_dir / LAST / WEIGHTS) for run in trainings]


def _page(runs: Sequence[Run], out: Path) -> tuple[Path, list[Finding]]:
    return build_report(runs, out / "report.html"), collect_findings(runs, 3)


def demo(
    out: str | Path = "runs/demo",
    *,
    overwrite: bool = False,
    progress: bool = True,
    command: str | Sequence[str] | None = None,
    **changes: Any,
) -> DemoResult:
    """Train on 4,000 digits, analyse and attack on the 1,000 that were held out, write `out/report.html`.

    Killed and called again it goes on; called once more it only draws the page. `changes` are options of training that
    differ from the recipe `quick`, e.g. epochs=5.
    """
    from vitscope.analyses import analyze
    from vitscope.robustness import attack

    out = Path(out)
    digits = load_data(DATA, "test")  # first: where they are missing nothing is begun
    how: dict[str, Any] = {"overwrite": overwrite, "progress": progress}
    trainings, models = _trained("quick", MODELS, out, {**how, **PROBES, **changes})
    how |= {"report": False, "command": command}
    analysis = analyze(models[0], digits, ANALYSES, out / "analysis", **how)
    attacks = attack(models, load_data(DATA, "test", images=ATTACKED), out=out / "attacks", **ATTACKS, **how)
    assert not isinstance(analysis, list)  # one model, one run
    assert isinstance(attacks, list)
    runs = [analysis, *attacks, *trainings]
    return DemoResult(*_page(runs, out), trainings, analysis, attacks)


@dataclass(frozen=True)
class TextDemoResult(Made):
    """What the demo with texts made."""

    swapped: list[Run]  # both on clean, swapped and mistyped texts

    @property
    def perplexity(self) -> float:
        """Of the first model on held-out topics, as the page's first card has it."""
        return float(self.trainings[0].summary["train.test_perplexity"]["value"])


def demo_text(
    out: str | Path = "runs/demo-text",
    *,
    overwrite: bool = False,
    progress: bool = True,
    command: str | Sequence[str] | None = None,
    **changes: Any,
) -> TextDemoResult:
    """Train two language models on Python's help topics, look inside and swap words in topics that were held out.

    As `demo`, with the recipe `quick-text`.
    """
    from vitscope.analyses import analyze
    from vitscope.robustness import evaluate

    out, how = Path(out), {"overwrite": overwrite, "progress": progress}
    trainings, models = _trained("quick-text", TEXT_MODELS, out, {**how, **changes})
    topics = load_data(TEXTS, "test", **WINDOWS)  # `val` is what the trainings are judged on
    more: dict[str, Any] = {**how, "report": False, "command": command}
    analysis = analyze(models[0], topics, TEXT_ANALYSES, out / "analysis", batch_size=16, **more)
    swapped = evaluate(models, topics, out / "swapped", **SWAPPED, **more)
    assert not isinstance(analysis, list)
    assert isinstance(swapped, list)
    runs = [*swapped, analysis, *trainings]
    return TextDemoResult(*_page(runs, out), trainings, analysis, swapped)


@dataclass(frozen=True)
class SegmentationDemoResult(Made):
    """What the demo with scenes made."""

    judged: list[Run]  # both on clean and corrupted scenes

    @property
    def mean_iou(self) -> float:
        """Per cent, of the first model, on held-out scenes as they are."""
        return float(self.judged[0].summary["segmentation.mean_iou"]["value"])


def demo_segmentation(
    out: str | Path = "runs/demo-segmentation",
    *,
    overwrite: bool = False,
    progress: bool = True,
    command: str | Sequence[str] | None = None,
    **changes: Any,
) -> SegmentationDemoResult:
    """Train two segmenters on scenes of digits, judge them on clean and corrupted scenes, look at their patches.

    As `demo`, with the recipe `quick-scenes`.
    """
    from vitscope.analyses import analyze
    from vitscope.robustness import evaluate

    out = Path(out)
    scenes = load_data(SCENES, "test", images=SCENES_SEEN)  # first: where digits are missing nothing is begun
    how: dict[str, Any] = {"overwrite": overwrite, "progress": progress}
    trainings, models = _trained("quick-scenes", SCENE_MODELS, out, {**how, **changes})
    how |= {"report": False, "command": command}
    lenses = analyze(models, scenes, SCENE_ANALYSES, out / "lens", **how)
    judged = evaluate(models, scenes, out / "judged", **CORRUPTED, **how)
    assert isinstance(lenses, list)
    assert isinstance(judged, list)
    runs = [*judged, *lenses, *trainings]
    return SegmentationDemoResult(*_page(runs, out), trainings, lenses[0], judged)
