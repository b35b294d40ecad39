"""The lens on patches against loops over patches, in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from segmented_scenes import CLASSES, PATCH, SIZE, scene_batches, tiny
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.patches.truth import patch_truth
from vitscope.analyses.selection import choose_analyses, start_analyses
from vitscope.data import Source, load_data, register_dataset
from vitscope.errors import UnsuitableDataError, UnsupportedModelError, VitscopeError
from vitscope.models import open_model

GRID = SIZE // PATCH
RARE = 0.2


def one(table, **wanted):
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


def read_by_hand(model, batch):
    """[(groups of the patch, class, {(block, point): (rank, log p, right?)})] of each patch with a class."""
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.hook_resid_*")
        logits = {
            (block, point): model.to_class_space(cache[f"blocks.{block}.hook_resid_{point}"][:, 1:])
            for block in range(3)
            for point in ("pre", "mid", "post")
        }
    truth = patch_truth(batch.targets, (SIZE, SIZE), (PATCH, PATCH), CLASSES)
    counts = [int((truth.classes == c).sum()) for c in range(CLASSES)]
    found = []
    for image in range(len(batch)):
        for patch in range(GRID * GRID):
            own = int(truth.classes[image, patch])
            if own < 0:
                continue
            groups = {"all", "border" if truth.border[image, patch] else "inside"}
            groups.add("rare" if counts[own] < RARE * sum(counts) else "frequent")
            read = {}
            for at, values in logits.items():
                row = values[image, patch]
                rank = sum(float(v) > float(row[own]) for v in row)
                read[at] = rank, float(row[own] - row.logsumexp(0))
            found.append((groups, own, read))
    return found


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_every_number_is_that_of_a_loop_over_patches(decoder):
    model, (batch,) = tiny(decoder), scene_batches()
    model.module.double()
    batch.inputs = batch.inputs.double()
    analysis = create_analysis("patches.identifiability", rare=RARE)
    measure(model, [batch], [analysis])
    tables, patches = analysis.tables(), read_by_hand(model, batch)
    level, change = tables["patches_identifiability"], tables["patches_change"]
    most = max(range(CLASSES), key=lambda c: sum(own == c for _, own, _ in patches))
    for group in ("all", "inside", "border", "frequent", "rare"):
        members = [(own, read) for groups, own, read in patches if group in groups]
        n = len(members)
        assert n > 10
        stages = [("resid_pre", 0, (0, "pre")), *(("resid_post", b, (b, "post")) for b in range(3))]
        for point, block, at in stages:
            row = one(level, block=block, point=point, tokens=group)
            assert (row["n_patches"], row["n_images"]) == (n, len(batch))
            expected = sum(1 - read[at][0] / CLASSES for _, read in members) / n
            assert row["identifiability"] == pytest.approx(expected)
            assert row["rate"] == pytest.approx(100 * sum(read[at][0] == 0 for _, read in members) / n)
            assert row["log_probability"] == pytest.approx(sum(read[at][1] for _, read in members) / n, abs=1e-9)
            assert row["majority"] == pytest.approx(100 * sum(own == most for own, _ in members) / n)
            assert row["rate_low"] < row["rate_high"]
        for block in range(3):
            for branch, before, after in (("attn_out", "pre", "mid"), ("mlp_out", "mid", "post")):
                steps = [read[block, after][1] - read[block, before][1] for _, read in members]
                row = one(change, block=block, point=branch, tokens=group)
                assert row["change"] == pytest.approx(sum(steps) / n, abs=1e-9)
                assert row["rose"] == pytest.approx(100 * sum(step > 0 for step in steps) / n)
        counts = dict.fromkeys(["embedding", "0", "1", "2", "never"], 0)
        for _, read in members:
            right = [read[at][0] == 0 for _, _, at in stages]
            since = next((i for i in range(4) if all(right[i:])), 4)
            counts[list(counts)[since]] += 1
        for name, count in counts.items():
            row = one(tables["patches_known"], tokens=group, known_from=name)
            assert row["rate"] == pytest.approx(100 * count / n)
    for number in range(CLASSES):
        members = [read for _, own, read in patches if own == number]
        row = one(tables["patches_classes"], block=2, point="resid_post", **{"class": number})
        assert row["n_patches"] == len(members)
        assert row["rate"] == pytest.approx(100 * sum(read[2, "post"][0] == 0 for read in members) / len(members))
        assert row["frequency"] == ("rare" if len(members) < RARE * len(patches) else "frequent")


def test_the_last_block_says_what_the_model_answers():
    """A patch as large as a pixel: what is known after the last block is the accuracy over pixels."""
    sizes = {"image_size": 6, "patch_size": 1, "embed_dim": 16, "depth": 2, "num_heads": 2}
    model = open_model("segmenter", "random", num_classes=CLASSES, decoder="mask", **sizes)
    (batch,) = scene_batches()
    batch.inputs, batch.targets = batch.inputs[..., ::4, ::4], batch.targets[..., ::4, ::4]
    analysis = create_analysis("patches.identifiability")
    measure(model, [batch], [analysis])
    row = one(analysis.tables()["patches_identifiability"], block=1, point="resid_post", tokens="all")
    known = batch.targets >= 0
    with torch.no_grad():
        right = (model(batch.inputs).argmax(1) == batch.targets) & known
    assert row["rate"] == pytest.approx(100 * float(right.sum() / known.sum()))


@pytest.mark.parametrize("decoder", ["linear", "mask"])
def test_pictures_of_another_size_than_the_models_are_read_too(decoder):
    """Whole pictures of their own shape, and label maps at the size on disk."""
    model, (batch,) = tiny(decoder), scene_batches()
    batch.inputs = batch.inputs[..., :18, :]  # 5 x 6 patches, the last row in part
    batch.targets = batch.targets[:, :18].repeat_interleave(2, 1).repeat_interleave(2, 2)
    analyses = [create_analysis(name) for name in ("patches.identifiability", "patches.attention")]
    measure(model, [batch], analyses)
    truth = patch_truth(batch.targets, (18, SIZE), (PATCH, PATCH), CLASSES)
    assert truth.grid == (5, 6)
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.2.hook_resid_post")
        top = model.to_class_space(cache["blocks.2.hook_resid_post"][:, 1:]).argmax(-1)
    row = one(analyses[0].tables()["patches_identifiability"], block=2, point="resid_post", tokens="all")
    assert row["rate"] == pytest.approx(100 * float((top == truth.classes)[truth.known].double().mean()))
    assert analyses[1].tables()["patches_attention"]["n_patches"].max() == int(truth.known.sum())


def test_a_window_that_is_larger_than_the_picture_fills_it_up_with_patches_without_a_class():
    model, (batch,) = tiny(window=SIZE + 2 * PATCH), scene_batches()
    analyses = [create_analysis(name) for name in ("patches.identifiability", "patches.attention")]
    measure(model, [batch], analyses)
    truth = patch_truth(batch.targets, (SIZE, SIZE), (PATCH, PATCH), CLASSES)
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.2.hook_resid_post")
        top = model.to_class_space(cache["blocks.2.hook_resid_post"][:, 1:]).argmax(-1)
    top = top.unflatten(1, (8, 8))[:, :6, :6].flatten(1)
    row = one(analyses[0].tables()["patches_identifiability"], block=2, point="resid_post", tokens="all")
    assert row["rate"] == pytest.approx(100 * float((top == truth.classes)[truth.known].double().mean()))
    assert analyses[1].tables()["patches_attention"]["n_patches"].max() == int(truth.known.sum())


def test_pictures_of_other_sizes_leave_out_what_is_made_for_one_grid_or_for_one_window():
    @register_dataset("wide scenes")
    def wide() -> Source:
        pictures, labels = np.zeros((2, 20, 30, 3), np.uint8), [np.zeros((20, 30), np.uint8)] * 2
        return Source(pictures, classes=list("abcd"), maps=labels)

    data = load_data("wide scenes")
    running, remarks = start_analyses(choose_analyses(None), tiny(), data, explicit=False)
    assert [a.name for a in running] == ["patches.attention", "patches.identifiability", "segmentation"]
    assert any("made for the model's 6x6 patches, and a picture of" in r and "has 6x9" in r for r in remarks)
    with pytest.raises(UnsuitableDataError, match="6x9"):
        start_analyses(choose_analyses("attention"), tiny(), data, explicit=True)
    running, remarks = start_analyses(choose_analyses(None), tiny(window=SIZE), data, explicit=False)
    assert [a.name for a in running] == ["segmentation"]
    assert sum("through 2 windows each" in r for r in remarks) == 3


@pytest.mark.parametrize("name", ["patches.identifiability", "patches.attention"])
def test_batches_and_processes_change_nothing(name):
    model = tiny()
    whole, split, first, second = (create_analysis(name) for _ in range(4))
    measure(model, scene_batches(), [whole])
    parts = scene_batches(sizes=[2, 1, 3])
    measure(model, scene_batches(sizes=[2, 1, 3]), [split])
    measure(model, parts[::2], [first])
    measure(model, parts[1::2], [second])
    first.merge(second)
    for table, rows in whole.tables().items():
        for other in (split, first):
            found = other.tables()[table]
            numbers = rows.select_dtypes("number").columns
            assert list(found.columns) == list(rows.columns)
            assert found[numbers].to_numpy() == pytest.approx(rows[numbers].to_numpy(), rel=1e-5, abs=1e-6, nan_ok=True)


def test_more_images_than_bundles_share_their_sums(monkeypatch):
    monkeypatch.setattr("vitscope.analyses.patches.analysis.bundles_for", lambda classes: 2)
    few, many = create_analysis("patches.identifiability"), create_analysis("patches.identifiability")
    model = tiny()
    measure(model, scene_batches(), [few])
    monkeypatch.undo()
    measure(model, scene_batches(), [many])
    assert few.sums["patches"].shape == (2, CLASSES, 2)
    a, b = (x.tables()["patches_identifiability"] for x in (few, many))
    assert a["log_probability"].to_numpy() == pytest.approx(b["log_probability"].to_numpy())
    assert (a["n_images"] == 6).all()


def test_pictures_of_the_gallery_are_kept_patch_by_patch():
    model, (batch,) = tiny(), scene_batches()
    analysis = create_analysis("patches.identifiability")
    measure(model, [batch], [analysis])
    maps = analysis.rows["patches_maps"][-1]
    assert len(analysis.rows["patches_maps"]) == 4  # the embedding and three blocks
    truth = patch_truth(batch.targets, (SIZE, SIZE), (PATCH, PATCH), CLASSES)
    assert maps["truth"].tolist() == truth.classes.flatten().tolist()
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.2.hook_resid_post")
        logits = model.to_class_space(cache["blocks.2.hook_resid_post"][:, 1:])
    assert maps["class"].tolist() == logits.argmax(-1).flatten().tolist()
    shown = analysis.rows["maps_patches"][-1]
    expected = logits.softmax(-1)[truth.known].gather(1, truth.classes[truth.known][:, None])[:, 0]
    assert shown["value"].tolist() == pytest.approx(expected.tolist(), rel=1e-5)


def test_without_any_label_there_is_nothing_to_say():
    (batch,) = scene_batches()
    batch.targets = torch.full_like(batch.targets, -1)
    for name in ("patches.identifiability", "patches.attention"):
        analysis = create_analysis(name)
        measure(tiny(), [batch], [analysis])
        assert analysis.tables() == {}
        assert analysis.summary() == {}


def test_bad_options_and_models_are_refused():
    with pytest.raises(VitscopeError, match="rare=2"):
        create_analysis("patches.identifiability", rare=2)
    with pytest.raises(UnsupportedModelError, match="no grid of patches"):
        create_analysis("patches.attention").start(open_model("lm-small", "random", depth=1))
