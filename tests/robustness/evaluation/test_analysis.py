"""The tables of an evaluation against plain loops over pictures and logits."""

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import timm.data
import torch
from sklearn.metrics import average_precision_score, roc_auc_score

import vitscope
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.robustness.corruption_error import ALEXNET

sys.path.insert(0, str(Path(__file__).parent.parent))
import set_folders as folders


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return folders.make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def model(sets):
    """Random weights, and a head that knows every other clean picture by heart: right and wrong in every set."""
    opened = open_model("test_vit", "random", img_size=32, depth=1, seed=1)
    data = load_data(sets["clean"], "val")
    (batch,) = data.batches(opened.preprocess, 64)
    head = opened.module.head
    with torch.no_grad():
        features = opened.module.forward_head(opened.module.forward_features(batch.images), pre_logits=True)
        known = torch.arange(len(data)) % 2 == 0
        head.weight.zero_(), head.bias.fill_(-1e3)
        for label in folders.CLEAN:
            mean = features[known & (batch.labels == label)].mean(0)
            head.weight[label], head.bias[label] = mean, -mean.dot(mean) / 2  # the nearest mean wins
    return opened


@pytest.fixture(scope="module")
def run(model, sets, tmp_path_factory):
    clean = load_data(sets["clean"], "val")
    ood = {k: v for k, v in sets.items() if k != "clean"}
    out = tmp_path_factory.mktemp("run") / "r"
    corrupt = "brightness,contrast"
    return vitscope.evaluate(model, clean, out, ood=ood, corrupt=corrupt, batch_size=7, progress=False)


def logits_of(model, data) -> torch.Tensor:
    """Through timm's own transform and a plain forward pass."""
    p = model.preprocess
    transform = timm.data.create_transform(
        p.input_size, interpolation=p.interpolation, mean=p.mean, std=p.std, crop_pct=p.crop_pct
    )
    x = torch.stack([transform(data[i].image.convert("RGB")) for i in range(len(data))])
    with torch.no_grad():
        return model.module.eval()(x).double()


def top1(logits: torch.Tensor, labels: list[int], among: tuple[int, ...] | None = None) -> tuple[int, int]:
    """(right, n) of the pictures whose label is among the classes, only their logits competing."""
    right = n = 0
    for row, label in zip(logits, labels):
        if among is not None and label not in among:
            continue
        n += 1
        best = max(among or range(1000), key=lambda c: row[c].item())
        right += best == label
    return right, n


def row(table: pd.DataFrame, **where) -> pd.Series:
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize("letter", ["A", "R"])
def test_masked_and_unmasked_accuracy_are_both_there_each_beside_its_own_clean_accuracy(run, model, sets, letter):
    own = folders.OWN[letter]
    table = run.table("evaluation")
    data, clean = load_data(sets[letter]), load_data(sets["clean"], "val")
    logits, clean_logits = logits_of(model, data), logits_of(model, clean)
    inside = [i for i, label in enumerate(clean.labels) if label in own]
    for among, name in ((None, "all 1,000"), (own, f"{len(own)} of {letter}")):
        found = row(table, set=letter, classes=name)
        right, n = top1(logits, data.labels, among)
        assert (found["top1"], found["n"]) == (pytest.approx(100 * right / n), n)
        right_clean, n_clean = top1(clean_logits[inside], [clean.labels[i] for i in inside], among)
        assert found["clean"] == pytest.approx(100 * right_clean / n_clean)
        assert found["clean_n"] == n_clean
        assert found["difference"] == pytest.approx(found["top1"] - found["clean"])
        assert found["difference_low"] <= found["difference"] <= found["difference_high"]
        beside = row(table, set="clean", classes=name, images=f"classes of {letter}")
        assert beside["top1"] == pytest.approx(found["clean"])
    assert (
        row(table, set=letter, classes=f"{len(own)} of {letter}")["top1"]
        >= row(table, set=letter, classes="all 1,000")["top1"]
    )


@pytest.mark.parametrize("letter", ["V2", "SKETCH"])
def test_sets_of_all_classes_are_compared_with_all_clean_images(run, model, sets, letter):
    root = sets[letter] / "sketch" if letter == "SKETCH" else sets[letter]
    data = load_data(root) if letter == "SKETCH" else load_data("imagenet-v2", root=root)
    found = row(run.table("evaluation"), set=letter)
    right, n = top1(logits_of(model, data), data.labels)
    assert (found["top1"], found["n"]) == (pytest.approx(100 * right / n), n)
    assert found["clean_n"] == 27
    assert found["comparison"] == "other images"


def test_corrupted_images_are_compared_with_themselves(run, model, sets):
    table = run.table("evaluation")
    found = row(table, set="corrupted", corruption="contrast", severity=5)
    clean = row(table, set="clean", images="all")
    assert found["comparison"] == "the same images"
    assert found["difference"] == pytest.approx(found["top1"] - clean["top1"])
    assert found["preparation"] == "the model's, corrupted at 32 x 32 px"
    assert found["difference_low"] <= found["difference"] <= found["difference_high"]


def test_anomaly_detection_ranks_by_the_largest_probability_against_clean_images_of_the_same_classes(run, model, sets):
    data, clean = load_data(sets["O"]), load_data(sets["clean"], "val")
    inside = [i for i, label in enumerate(clean.labels) if label in folders.OWN["O"]]
    out, others = logits_of(model, data), logits_of(model, clean)[inside]
    table = run.table("ood_detection")
    for among, name in ((range(1000), "all 1,000"), (folders.OWN["O"], "2 of O")):
        scores = -torch.cat([out, others])[:, list(among)].softmax(1).amax(1).numpy()
        labels = np.repeat([1, 0], [len(out), len(others)])
        found = row(table, classes=name)
        assert found["aupr"] == pytest.approx(100 * average_precision_score(labels, scores), abs=1e-6)
        assert found["auroc"] == pytest.approx(100 * roc_auc_score(labels, scores), abs=1e-6)
        assert (found["n_out"], found["n_clean"]) == (4, 6)
        assert found["score"] == "-max softmax"
        assert found["fpr95_code"] == found["fpr95"]  # of four images, 95 % are all of them in both readings
    assert not (run.table("evaluation")["set"] == "O").any()  # nobody can be right there


def test_ce_needs_all_severities_and_mce_all_corruptions(run):
    errors, means = run.table("corruption_error"), run.table("corruption_mean")
    found, per_severity = row(errors, corruption="contrast"), run.table("evaluation")
    accuracy = per_severity[per_severity["corruption"] == "contrast"]["top1"].mean()
    assert found["ce"] == pytest.approx((100 - accuracy) / ALEXNET["contrast"])
    assert found["difference"] == pytest.approx(accuracy - row(per_severity, set="clean", images="all")["top1"])
    assert pd.isna(means["mce"].iloc[0])
    assert "evaluation.corrupted_mce" not in run.summary


def test_mce_of_the_distributed_set_is_the_brute_force_mean(model, tmp_path):
    root = folders.make_c(tmp_path / "c", dict.fromkeys(ALEXNET, ""))
    run = vitscope.evaluate(model, None, tmp_path / "run", ood={"C": root}, report=False, progress=False)
    table = run.table("evaluation")
    total = 0.0
    for name, alexnet in ALEXNET.items():
        errors = []
        for severity in range(1, 6):
            data = load_data(root / name / str(severity))
            x = torch.stack([torch.from_numpy(np.array(data[i].image)).permute(2, 0, 1) for i in range(len(data))])
            p = model.preprocess
            mean, std = (torch.tensor(v).view(1, 3, 1, 1) for v in (p.mean, p.std))
            with torch.no_grad():
                predicted = model.module.eval()((x.float() / 255 - mean) / std).argmax(1).tolist()
            wrong = sum(a != b for a, b in zip(predicted, data.labels)) / len(data)
            errors.append(wrong)
            assert row(table, corruption=name, severity=severity)["top1"] == pytest.approx(100 * (1 - wrong))
        total += sum(errors) / 5 / alexnet / 15
    found = run.table("corruption_mean").iloc[0]
    assert found["mce"] == pytest.approx(100 * total)
    assert run.summary["evaluation.C_mce"]["value"] == pytest.approx(100 * total)
    assert found["mce_low"] <= found["mce"] <= found["mce_high"]
    assert table["clean"].isna().all()  # without clean images there is nothing to compare with


def test_the_summary_names_classes_and_protocol(run):
    assert run.kind == "evaluate"
    assert run.status == "finished"
    figures = run.summary
    assert "3 of A" in figures["evaluation.A_own_classes"]["note"]
    assert "all 1,000" in figures["evaluation.A"]["note"]
    assert figures["evaluation.clean"]["n"] == 27
    assert "-max softmax" in figures["evaluation.O_aupr"]["note"]


def test_the_report_shows_both_panels_and_says_what_was_found(run):
    html = (run.path / "report.html").read_text()
    assert "Which corruptions break it, and how soon?" in html
    assert "does it notice what it has never seen?" in html
    assert "could not be drawn" not in html
    names = {p.stem.replace("-", "_") for p in (run.path / "figures").glob("*.svg")}
    assert {"corruption_map", "corruption_severity", "corruption_difference", "shifts", "detection"} <= names


def test_an_evaluation_of_plain_data_is_one_clean_condition(model, sets, tmp_path):
    clean = load_data(sets["clean"], "val")
    run = vitscope.analyze(model, clean, ["accuracy", "evaluation"], tmp_path / "r", report=False, progress=False)
    found = run.table("evaluation").iloc[0]
    accuracy = run.table("accuracy").set_index("metric")["value"]
    assert found["top1"] == accuracy["top1"]
    assert found["top5"] == accuracy["top5"]
    assert found["ece"] == pytest.approx(accuracy["ece"])
    logits, labels = logits_of(model, clean), torch.tensor(clean.labels)
    right = (logits.argmax(1) == labels)[logits.softmax(1).amax(1).argsort(descending=True)].double()
    expected = (right.cumsum(0) / torch.arange(1, len(right) + 1)).mean()
    assert found["aurra"] == pytest.approx(100 * float(expected))
    assert pd.isna(found["rms_code"])  # the published program needs a hundred images


def test_a_head_of_other_classes_is_refused(sets, tmp_path):
    digits = open_model("test_vit", "random", img_size=32, depth=1, num_classes=10)
    with pytest.raises(vitscope.VitscopeError, match=r"tells 10 classes apart.*1,000"):
        vitscope.evaluate(digits, None, tmp_path / "r", ood={"A": sets["A"]}, progress=False)
