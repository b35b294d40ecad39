"""Ablation against forward passes with one edit each, written out with hooks of the bare module."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.causes.components import Component, component_named, exchange
from vitscope.analyses.causes.means import PointMeans
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError


def hooked(module, place, change, images):
    """Logits with the input of one submodule changed, by a hook of one's own."""
    handle = place.register_forward_pre_hook(lambda m, args: (change(args[0]), *args[1:]))
    try:
        with torch.no_grad():
            return module(images).double()
    finally:
        handle.remove()


def true_values(logits, labels):
    rows = torch.arange(len(labels))
    return logits[rows, labels], logits.softmax(1)[rows, labels], (logits.argmax(1) == labels).double()


def silenced(head, size=8, new=0.0):
    def change(z):  # (B, N, C): the heads side by side, before the projection
        z = z.clone()
        z[..., head * size : (head + 1) * size] = new if isinstance(new, float) else new[head]
        return z

    return change


def test_a_head_at_zero_is_a_projection_that_does_not_see_it(vit, pictures):
    study = create_analysis("causes.ablation", kinds=["head"], at_once=6)
    measure(vit, [pictures], [study])
    table = study.tables()["causes_ablation"].set_index("component")
    assert len(table) == 12
    with torch.no_grad():
        before = true_values(vit(pictures.inputs).double(), pictures.labels)
    for block in range(3):
        for head in range(4):
            place = vit.module.blocks[block].attn.proj
            after = true_values(hooked(vit.module, place, silenced(head), pictures.inputs), pictures.labels)
            row = table.loc[f"head.{block}.{head}"]
            for name, b, a, scale in zip(("logit", "probability", "accuracy"), before, after, (1, 100, 100)):
                assert row[name] == pytest.approx(scale * float(b.mean()), abs=1e-4)
                assert row[f"{name}_after"] == pytest.approx(scale * float(a.mean()), abs=1e-4)
                assert row[f"{name}_change"] == pytest.approx(scale * float((a - b).mean()), abs=1e-4)
            difference = after[0] - before[0]
            half = 1.96 * float(difference.std()) / len(difference) ** 0.5
            assert row["logit_change_high"] - row["logit_change"] == pytest.approx(half, rel=1e-3)


def test_a_mean_is_over_the_data_and_per_token(vit, tools):
    class Data:
        def __len__(self):
            return 9

        documents = None

        def batches(self, preprocess, batch_size, **turn):
            return iter([tools["pictures"](vit, 6), tools["pictures"](vit, 3, first=6)])

    batches = list(Data().batches(None, 1))
    study = create_analysis("causes.ablation", method="mean", kinds=["head", "mlp"])
    measure(vit, batches, [study], data=Data())
    images = torch.cat([b.inputs for b in batches])
    labels = torch.cat([b.labels for b in batches])
    with torch.no_grad():
        _, cache = vit.run_with_cache(images, ["blocks.1.attn.hook_z", "blocks.1.hook_mlp_out"])
    z, mlp = cache["blocks.1.attn.hook_z"].mean(0), cache["blocks.1.hook_mlp_out"].mean(0)
    table = study.tables()["causes_ablation"].set_index("component")
    logits = hooked(vit.module, vit.module.blocks[1].attn.proj, silenced(2, new=z), images)
    assert table.loc["head.1.2", "logit_after"] == pytest.approx(float(true_values(logits, labels)[0].mean()), abs=1e-4)
    with torch.no_grad(), vit.edits({"blocks.1.hook_mlp_out": lambda value, point: mlp.expand_as(value)}):
        logits = vit(images).double()
    assert table.loc["mlp.1", "logit_after"] == pytest.approx(float(true_values(logits, labels)[0].mean()), abs=1e-4)


def test_groups_of_tokens_are_those_of_the_layout_and_the_masks(vit, pictures):
    study = create_analysis("causes.ablation", kinds=["resid"], blocks=[0, 2])
    measure(vit, [pictures], [study])
    table = study.tables()["causes_ablation"].set_index(["block", "tokens"])
    assert set(table.index) == {(b, t) for b in (0, 2) for t in ("class", "image", "object", "context")}
    for tokens in ("image", "object", "context"):  # nobody reads them after the last block
        assert table.loc[(2, tokens), "logit_change"] == 0
    inside = pictures.token_masks(vit.layout.grid) == 1

    def change(value, point):
        value = value.clone()
        value[:, 1:][inside] = 0
        return value

    with torch.no_grad(), vit.edits({"blocks.0.hook_resid_post": change}):
        after = true_values(vit(pictures.inputs).double(), pictures.labels)[0].mean()
    assert table.loc[(0, "object"), "logit_after"] == pytest.approx(float(after), abs=1e-4)


def test_each_token_by_itself_has_its_place_in_the_picture(vit, pictures):
    options = {"kinds": ["resid", "mlp"], "tokens": "each", "by_token": ["resid", "mlp"], "blocks": [1]}
    study = create_analysis("causes.ablation", **options)
    measure(vit, [pictures], [study])
    both = study.tables()["causes_ablation_tokens"]
    for kind in options["kinds"]:
        table = both[both["kind"] == kind]
        assert table["token"].tolist() == list(range(17))
        assert table["row"].isna().tolist() == [True] + 16 * [False]
        assert table[["row", "column"]].iloc[7].tolist() == [1, 2]
    with torch.no_grad(), vit.edits({"blocks.1.hook_mlp_out": lambda x, _: x * (torch.arange(17) != 7)[:, None]}):
        after = true_values(vit(pictures.inputs).double(), pictures.labels)[0].mean()
    assert table["logit_after"].iloc[7] == pytest.approx(float(after), abs=1e-4)
    assert "causes_ablation_agreement" not in study.tables()  # attribution is of all tokens at once


def test_parts_that_go_together_stand_beside_random_ones(vit, pictures):
    study = create_analysis("causes.ablation", kinds=["head", "mlp"], together=["0.1+2.3", "1.0+mlp.1"], draws=3)
    measure(vit, [pictures], [study])
    tables = study.tables()
    sets, single = tables["causes_ablation_together"], tables["causes_ablation"].set_index("component")["logit_change"]
    assert sets["drawn"].tolist() == 2 * ["asked", "random 0", "random 1", "random 2"]
    for row in sets.to_dict("records"):
        assert row["alone"] == pytest.approx(sum(single[p] for p in row["parts"].split("+")), abs=1e-9)
    drawn = sets[sets["set"] == "1.0+mlp.1"]["parts"].tolist()
    assert all(sum(p.startswith("mlp") for p in parts.split("+")) == 1 for parts in drawn)
    again = create_analysis("causes.ablation", kinds=["head", "mlp"], together=["0.1+2.3", "1.0+mlp.1"], draws=3)
    again.start(vit)
    assert [t.parts for t in again.trials] == [t.parts for t in study.trials]  # the draws are a function of the seed
    edits = {
        "blocks.0.attn.hook_z": exchange(Component("head", 0, 1), 0.0),
        "blocks.2.attn.hook_z": exchange(Component("head", 2, 3), 0.0),
    }
    with torch.no_grad(), vit.edits(edits):
        after = true_values(vit(pictures.inputs).double(), pictures.labels)[0].mean()
    assert sets["logit_after"][0] == pytest.approx(float(after), abs=1e-4)


def test_agreement_with_attribution_is_spearmans_over_parts(vit, pictures):
    from scipy.stats import spearmanr

    study = create_analysis("causes.ablation", kinds=["head", "mlp", "resid"], together=["0.1+2.3"], draws=1)
    measure(vit, [pictures], [study])
    row = study.tables()["causes_ablation_agreement"].set_index("kind").loc["head"]
    names = [(block, head) for block in range(3) for head in range(4)]
    with torch.no_grad():
        logits, cache = vit.run_with_cache(pictures.inputs)
        given = vit.attribute(cache, pictures.labels)
    before = true_values(logits.double(), pictures.labels)[0]
    direct = torch.stack([given[f"blocks.{b}.head.{h}"] for b, h in names], 1).double()
    lost = []
    for block, head in names:
        place = vit.module.blocks[block].attn.proj
        lost.append(
            before - true_values(hooked(vit.module, place, silenced(head), pictures.inputs), pictures.labels)[0]
        )
    lost = torch.stack(lost, 1)
    each = [spearmanr(a, b).statistic for a, b in zip(direct, lost)]
    assert row["rank_correlation"] == pytest.approx(np.mean(each), abs=1e-6)
    assert row["rank_correlation_high"] - np.mean(each) == pytest.approx(1.96 * np.std(each, ddof=1) / 6**0.5, rel=1e-3)
    assert row["of_means"] == pytest.approx(spearmanr(direct.mean(0), lost.mean(0)).statistic)
    assert row["of_means_low"] <= row["of_means"] <= row["of_means_high"]
    assert (row["components"], row["n_images"]) == (12, 6)


def test_a_whole_attention_or_mlp_is_its_parts_and_their_bias(vit, pictures):
    study = create_analysis("causes.ablation", kinds=["attn", "mlp"])
    study.start(vit)
    found = study.direct.of(pictures)
    with torch.no_grad():
        given = vit.attribute(vit.run_with_cache(pictures.inputs)[1], pictures.labels)
    for place, number in enumerate(study.written):
        (part,) = study.trials[number].parts
        inside = [n for n in given.labels if n.startswith(f"blocks.{part.block}.")]
        inside = [n for n in inside if n.split(".")[2] == "mlp" or n.endswith(".mlp")] if part.kind == "mlp" else [
            n for n in inside if ".head." in n or ".attn." in n
        ]  # fmt: skip
        assert torch.allclose(found[:, place], sum(given[n] for n in inside).double(), atol=1e-6)


def test_models_whose_logits_are_no_sums_have_no_agreement(tools):
    from vitscope.analyses.base import Setting
    from vitscope.tasks.language import Language

    for family, there in (("gpt2", True), ("bert", False)):
        model, batch = tools["text_model"](family), tools["texts"]((9, 5, 7))
        study = create_analysis("causes.ablation", kinds=["head", "mlp"])
        study.setting = Setting(task=Language())
        measure(model, [batch], [study])
        assert ("causes_ablation_agreement" in study.tables()) == there
        if there:
            with torch.no_grad():
                given = model.attribute(model.run_with_cache(batch.inputs)[1], batch.targets.clamp(min=0))
            known = batch.targets >= 0
            wanted = (given["blocks.1.head.1"] * known).sum(1) / known.sum(1)
            place = [study.trials[i].parts[0].name for i in study.written].index("head.1.1")
            assert torch.allclose(study.direct.of(batch)[:, place], wanted.double(), atol=1e-6)


def test_of_texts_it_is_the_next_token_and_silent_heads_are_those_of_knockout(tools):
    from vitscope.analyses.base import Setting
    from vitscope.tasks.language import Language

    model, batch = tools["text_model"]("llama"), tools["texts"]((9, 5, 7))
    study, other = create_analysis("causes.ablation"), create_analysis("vocabulary.knockout", distances=[])
    study.setting = Setting(task=Language())
    measure(model, [batch], [study, other])
    mine = study.tables()["causes_ablation"]
    assert set(mine[mine["kind"] == "resid"]["tokens"]) == {"first", "text"}  # nothing separates these texts
    heads = mine[mine["kind"] == "head"]
    theirs = other.tables()["vocabulary_knockout_heads"]
    assert np.allclose(heads["accuracy_after"], theirs["accuracy_after"])
    assert heads["n_answers"].unique().tolist() == [18]


def test_two_halves_add_up_to_the_whole(vit, tools):
    batches = [tools["pictures"](vit, 4), tools["pictures"](vit, 3, first=4)]
    whole, first, second = (create_analysis("causes.ablation", kinds=["attn", "resid"]) for _ in range(3))
    measure(vit, batches, [whole])
    measure(vit, batches[:1], [first])
    measure(vit, batches[1:], [second])
    first.merge(second)
    for key, sums in whole.sums.items():
        assert torch.allclose(sums.double(), first.sums[key].double(), atol=1e-12)


def test_bad_input_is_answered(vit, pictures, tools):
    for options, message in (
        ({"method": "men"}, "Did you mean mean"),
        ({"kinds": ["heads"]}, "Did you mean head"),
        ({"tokens": "all"}, "There is no tokens 'all'"),
        ({"together": ["3"]}, "is no component: expected BLOCK.HEAD"),
        ({"together": ["1.1+1.1"]}, "named twice"),
        ({"at_once": 0}, "at_once >= 1"),
    ):
        with pytest.raises(VitscopeError, match=message):
            create_analysis("causes.ablation", **options)
    for options, message in (
        ({"blocks": [3]}, "There is no block 3"),
        ({"together": ["1.4"]}, "There is no head 1.4"),
        ({"kinds": []}, "Nothing is switched off"),
    ):
        with pytest.raises(VitscopeError, match=message):
            create_analysis("causes.ablation", **options).start(vit)
    with pytest.raises(UnsupportedModelError, match="no head"):
        create_analysis("causes.ablation").start(tools["vit"](num_classes=0))
    with pytest.raises(UnsupportedModelError, match="use tokens='groups'"):
        create_analysis("causes.ablation", tokens="each").start(tools["text_model"]("gpt2"))
    with pytest.raises(VitscopeError, match="A mean over no images"):
        measure(vit, [pictures], [create_analysis("causes.ablation", method="mean")])
    means = PointMeans(["blocks.*.hook_mlp_out"])
    means.start(vit)
    with pytest.raises(DataError, match="A mean over no images"):
        means.means()


def test_components_are_named_as_they_are_typed():
    assert component_named("11.2") == component_named("head.11.2") == Component("head", 11, 2)
    assert component_named("mlp.3") == Component("mlp", 3)
