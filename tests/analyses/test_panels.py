"""The panels of accuracy and attention: they draw tables, and their sentences carry the tables' numbers."""

import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses.accuracy_panel import accuracy_panel, draw_calibration
from vitscope.analyses.attention_panel import attention_panel, draw_heads
from vitscope.report.figures import house_style
from vitscope.statistics.intervals import wilson


class FakeRun(SimpleNamespace):
    """Tables and a configuration, as a Run gives them."""

    def table(self, name):
        return self.tables.get(name)

    def list_tables(self):
        return sorted(self.tables)


CONFIG = {"data": {"name": "digits", "split": "test"}, "batch_size": 32, "seed": 0}
CONFIG["preprocess"] = {"source": "somewhere", "input_size": [1, 28, 28]}


def accuracy_run(right=80, n=100, confidence=0.9, config=CONFIG):
    low, high = (100 * x for x in wilson(right, n))
    overall = [("top1", 100 * right / n, "%", low, high), ("top5", 99.0, "%", 95.0, 100.0)]
    overall += [("loss", 0.5, "nats", 0.4, 0.6), ("ece", 10.0, "%", 5.0, 15.0)]
    tables = {
        "accuracy": pd.DataFrame(overall, columns=["metric", "value", "unit", "low", "high"]).assign(n=n),
        "calibration": pd.DataFrame(
            {
                "n": [n // 2, n - n // 2],
                "confidence": [confidence - 0.05, confidence + 0.05],
                "accuracy": [0.7, 0.9],
                "accuracy_low": [0.6, 0.8],
                "accuracy_high": [0.8, 1.0],
            }
        ),
        "accuracy_per_class": pd.DataFrame(
            {
                "class_name": ["<b>cat</b>", "dog", "rare"],
                "n": [50, 48, 2],
                "top1": [90.0, 70.0, 0.0],
                "top1_low": [80.0, 60.0, 0.0],
                "top1_high": [95.0, 80.0, 60.0],
            }
        ),
    }
    return FakeRun(tables=tables, config=config)


def attention_run(blocks=3, heads=2, scale=1.0, class_token=True):
    rows = []
    for block in range(blocks):
        for head in range(heads):
            for query in ("class", "image") if class_token else ("image",):
                metrics = {"entropy_normalised": 0.5, "mass_self": 0.1}
                metrics |= {"mass_class": 0.2 + 0.1 * block} if class_token else {}
                metrics |= {"distance": scale * (10 + block + head)} if query == "image" else {}
                uniform = {"entropy_normalised": 1.0, "mass_self": 0.02, "mass_class": 0.02, "distance": 40.0}
                rows += [(block, head, query, m, v, 0.4, uniform[m], 100) for m, v in metrics.items()]
    columns = ["block", "head", "query", "metric", "mean", "std", "uniform", "n"]
    return FakeRun(tables={"attention": pd.DataFrame(rows, columns=columns)}, config=CONFIG)


@pytest.fixture(autouse=True)
def _style():
    with house_style():
        yield


def test_two_classes_of_one_name_are_two_lines_told_apart_by_their_numbers():
    run = accuracy_run()
    run.tables["accuracy_per_class"] = pd.DataFrame(
        {
            "label": [3, 5, 7],
            "class_name": ["crane", "dog", "crane"],
            "n": [50, 48, 20],
            "top1": [90.0, 70.0, 40.0],
            "top1_low": [80.0, 60.0, 30.0],
            "top1_high": [95.0, 80.0, 60.0],
        }
    )
    figure = accuracy_panel({"a": run, "b": run}).figures["accuracy_per_class"]
    ax = figure.axes[0]
    assert [text.get_text() for text in ax.get_yticklabels()] == ["crane (7)", "dog", "crane (3)"]
    assert [line.get_xdata().tolist() for line in ax.get_lines()] == [[40.0, 70.0, 90.0]] * 2


def test_without_their_tables_there_are_no_panels():
    empty = {"a": FakeRun(tables={}, config={})}
    assert accuracy_panel(empty) is None
    assert attention_panel(empty) is None


def test_the_accuracy_headline_has_number_interval_and_images():
    panel = accuracy_panel({"a": accuracy_run()})
    low, high = wilson(80, 100)
    first, second = (finding.text for finding in panel.findings)
    assert re.match(r"80\.0 % of 100 images", first)
    assert f"{100 * low:.1f} to {100 * high:.1f} %" in first
    assert "10.0 points more confident than right" in second
    assert "n = 100 images" in panel.captions["calibration"]
    assert "digits (test), preprocessing somewhere at 28x28 px, batch size 32, seed 0" in panel.protocol


def test_a_timid_model_is_called_less_confident():
    panel = accuracy_panel({"a": accuracy_run(confidence=0.6)})
    assert "20.0 points less confident than right" in panel.findings[1].text


def test_classes_with_few_images_are_not_drawn_but_listed():
    panel = accuracy_panel({"a": accuracy_run()})
    (ax,) = panel.figures["accuracy_per_class"].axes
    assert [tick.get_text() for tick in ax.get_yticklabels()] == ["dog", "<b>cat</b>"]
    assert "rare" in set(panel.tables["accuracy_per_class"]["class_name"])


def test_models_share_axes_and_keep_the_colour_of_their_place():
    labels = ["not drawn", "a", "b"]
    tables = {label: accuracy_run().tables["calibration"] for label in ("a", "b")}
    (ax,) = draw_calibration(tables, labels).axes
    from vitscope.report.figures import model_styles

    colours = {line.get_color() for line in ax.get_lines()}
    assert {model_styles(labels)[label].colour for label in ("a", "b")} <= colours
    assert model_styles(labels)["not drawn"].colour not in colours


def test_one_protocol_where_all_agree_and_one_each_where_not():
    runs = {"a": accuracy_run(), "b": accuracy_run()}
    assert accuracy_panel(runs).protocol.count("digits (test)") == 1
    runs["b"] = accuracy_run(config=CONFIG | {"seed": 1})
    assert "b: digits (test)" in accuracy_panel(runs).protocol


def test_every_head_is_a_dot_and_the_mean_a_line_beside_the_uniform_level():
    run = attention_run()
    left, _ = draw_heads({"a": run.tables["attention"]}, ["a"]).axes
    dots, line, null = left.get_lines()
    assert len(dots.get_xdata()) == 6
    assert np.allclose(line.get_ydata(), [10.5, 11.5, 12.5])
    assert np.allclose(null.get_ydata(), 40)


def test_attention_findings_carry_the_tables_numbers():
    panel = attention_panel({"a": attention_run()})
    distance, mass = (finding.text for finding in panel.findings)
    half = 1.959963984540054 * 0.4 / np.sqrt(100)
    assert f"10.5 px (95 % interval ± {half:.2g}" in distance
    assert "12.5 px" in distance
    assert "uniform attention would travel 40.0 px. 2 of 2 heads" in distance
    assert "40.0 % of their attention in block 2" in mass
    assert "20.0 times" in mass


def test_models_without_class_token_and_of_other_depth_share_the_figure():
    runs = {"a": attention_run(), "b": attention_run(blocks=5, class_token=False, scale=2)}
    panel = attention_panel(runs)
    axes = panel.figures["attention_mass"].axes
    assert len(axes) == 4
    assert not axes[2].axison  # b has no class token
    assert len(panel.findings) == 3
    assert all(finding.text.startswith(("a: ", "b: ")) for finding in panel.findings)
    shares = [sum(p.get_height() for p in axes[1].patches if abs(p.get_x() + 0.43 - block) < 0.1) for block in range(3)]
    assert shares == pytest.approx([1, 1, 1])
