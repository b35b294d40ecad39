"""The panels draw what the tables say, for one model and for two, with and without masks."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitscope.analyses.engine import analyze
from vitscope.data import load_data
from vitscope.registry import PANELS
from vitscope.report.figures import house_style

KEYS = [
    "class_space",
    "class_space_composition",
    "class_space_memories",
    "class_space_perturbation",
    "class_space_relevance",
    "class_space_probes",
    "class_space_importance",
]
ANALYSES = {
    "class_space.identifiability": {"control": "random", "permutations": 99},
    "class_space.composition": {},
    "class_space.memories": {"control": "random"},
    "class_space.lens": {},
    "class_space.importance": {},
    "perturbation": {},
    "relevance": {"methods": ["chefer", "rollout"], "steps": 3, "draws": 1},
}


@pytest.fixture(scope="module")
def digits(tmp_path_factory):
    """Bright squares on black in four classes: a picture whose ink is its mask."""
    root = tmp_path_factory.mktemp("panels")
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for label in range(4):
            folder = root / split / str(label)
            folder.mkdir(parents=True)
            for i in range(5):
                pixels = np.zeros((28, 28), np.uint8)
                pixels[4 + 4 * label : 14 + 2 * label, 5:20] = rng.integers(100, 255)
                Image.fromarray(pixels).save(folder / f"{split}{label}{i}.png")
    return root


@pytest.fixture(scope="module")
def runs(tools, digits, tmp_path_factory):
    from vitscope.report.panel_parts import tables_of  # noqa: F401  (panels are registered by importing analyses)

    out = tmp_path_factory.mktemp("runs")
    options = {**ANALYSES, "probes": {"train": str(digits), "train_split": "train", "tokens": "class,mean"}}
    data, found = load_data(digits, "val"), {}
    for label, extra in (("one", {}), ("pooled", {"class_token": False, "global_pool": "avg"})):
        wanted = {n: dict(o) for n, o in options.items()}
        if extra:
            wanted["probes"]["tokens"] = "mean"
        model = tools["build"](num_classes=4, **extra)
        found[label] = analyze(model, data, wanted, out / label, report=False, progress=False, gallery=2)
    return found


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize("key", KEYS)
def test_every_panel_has_its_anatomy(runs, key, several):
    with house_style():
        panel = PANELS.get(key)(runs if several else {"one": runs["one"]})
        assert panel is not None
        for stem, figure in panel.figures.items():
            figure.canvas.draw()
            assert panel.alt[stem]
            assert panel.captions[stem]
    assert panel.title.endswith("?")
    assert panel.reading
    assert panel.findings
    assert all("nan" not in finding.text for finding in panel.findings)
    assert len(panel.tables)


def test_panels_are_absent_where_their_tables_are(tmp_path, tools, digits):
    run = analyze(
        tools["build"](num_classes=4), load_data(digits, "val"), ["accuracy"], tmp_path, report=False, progress=False
    )
    assert all(PANELS.get(key)({"one": run}) is None for key in KEYS)


def test_missing_masks_are_said(runs):
    with house_style():
        panel = PANELS.get("class_space")({"one": runs["one"]})
        relevance = PANELS.get("class_space_relevance")({"one": runs["one"]})
        perturbation = PANELS.get("class_space_perturbation")({"one": runs["one"]})
    assert "No masks" in panel.reading
    assert "class_space_class_vs_context" not in panel.figures
    assert "no masks" in relevance.reading
    assert "No masks: one has no removal" in perturbation.reading
    assert "attention edited in all blocks" in perturbation.protocol


def test_chance_is_drawn_and_said_for_the_number_of_classes(runs):
    with house_style():
        panel = PANELS.get("class_space")({"one": runs["one"]})
    assert "0.625 that the token knows nothing" in panel.reading  # (4 + 1) / (2 * 4)
    for ax in panel.figures["class_space_identifiability"].axes[:2]:
        assert any(np.allclose(line.get_ydata(), 0.625) for line in ax.get_lines())


def test_a_missing_interval_is_said_and_chosen_blocks_are_named(runs):
    from types import SimpleNamespace

    from vitscope.analyses.class_space.panels.parts import interval
    from vitscope.analyses.class_space.panels.perturbation import edited_text

    assert interval({"low": float("nan"), "high": float("nan")}) == "one image, so no interval"
    assert interval({"low": 0.1, "high": 0.25}, unit=" %") == "95 % interval 0.100 to 0.250 %"
    chosen = SimpleNamespace(config={"analyses": {"perturbation": {"blocks": [0, 2]}}})
    assert edited_text({"a": chosen}) == "attention edited in block(s) 0, 2"


def test_the_stack_reaches_one_hundred_and_no_more(runs):
    with house_style():
        figure = PANELS.get("class_space_composition")({"one": runs["one"]}).figures["class_space_composition"]
    for ax in figure.axes[:2]:
        tops = {}
        for bar in ax.patches:
            x = round(bar.get_x(), 3)
            tops[x] = tops.get(x, 0) + bar.get_height()
        assert list(tops.values()) == pytest.approx([100] * 3)


def test_under_the_published_conventions_every_panel_is_drawn_and_the_stack_is_the_same(tools, digits, tmp_path):
    wanted = {name: {"variant": "code"} for name in ("class_space.identifiability", "class_space.composition")}
    wanted |= {"class_space.memories": {"variant": "code"}, "perturbation": {"variant": "code"}}
    model, data = tools["build"](num_classes=4), load_data(digits, "val")
    quiet = {"report": False, "progress": False, "gallery": 0}
    code = analyze(model, data, wanted, tmp_path / "code", **quiet)
    exact = analyze(model, data, ["class_space.composition"], tmp_path / "exact", **quiet)
    with house_style():
        for key in KEYS[:4]:
            assert PANELS.get(key)({"code": code}) is not None
        panels = [PANELS.get("class_space_composition")({"one": run}) for run in (code, exact)]
    mine, other = ([bar.get_height() for bar in p.figures["class_space_composition"].axes[0].patches] for p in panels)
    assert mine == pytest.approx(other)
    assert "overlapping matches of one" in panels[0].captions["class_space_composition"]
    assert "overlapping" not in panels[1].captions["class_space_composition"]
