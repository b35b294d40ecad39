"""Patching against whole forward passes with values of the other run, and its estimates where they are exact."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from vitscope.analyses import create_analysis, measure
from vitscope.analyses.base import Setting
from vitscope.analyses.causes.components import Component, exchange
from vitscope.analyses.causes.gradient import first_order, point_gradients
from vitscope.analyses.causes.pairs import Pairs, Partners, register_pairs
from vitscope.analyses.causes.paths import path_named
from vitscope.analyses.causes.prefix import Prefix
from vitscope.data import load_data
from vitscope.errors import DataError, UnsuitableDataError, VitscopeError
from vitscope.models import Model
from vitscope.robustness import perturb
from vitscope.robustness.corruptions import corrupt, image_seed
from vitscope.statistics.ranks import rank_correlation


@pytest.fixture
def mirrored():
    """Partners that are far away: the pictures upside down and inverted."""

    @register_pairs("mirrored")
    class Mirrored(Pairs):
        def partners(self, batch):
            return Partners(-batch.images.flip(2), torch.ones(len(batch), dtype=torch.bool))

    return Mirrored


def other_side(batch):
    return -batch.images.flip(2)


@pytest.fixture
def study(vit, pictures, mirrored):
    found = create_analysis("causes.patching", pairs=["mirrored"], paths=["0.1>2.2", "0.1>1.3:v"])
    measure(vit, [pictures], [found])
    return found


def both_runs(model, batch):
    """(values of all points, logits) of the clean and the other run, of the pairs that disagree."""
    with torch.no_grad():
        after = model(other_side(batch)).argmax(1)
    used = (after != batch.labels).nonzero().flatten()
    with torch.no_grad():
        runs = [model.run_with_cache(x[used], "*") for x in (batch.images, other_side(batch))]
    return used, batch.labels[used], after[used], runs


def difference(logits, true, wrong):
    rows = torch.arange(len(true))
    return (logits[rows, true] - logits[rows, wrong]).double()


def test_all_tokens_of_the_residual_are_the_clean_forward(vit, pictures):
    _, cache = vit.run_with_cache(pictures.images, "blocks.*.hook_resid_post")
    clean, prefix = vit(pictures.images), Prefix(vit, other_side(pictures))
    for block in range(3):
        part = Component("resid", block)
        assert torch.equal(prefix.run([{part.point: exchange(part, cache[part.point])}]), clean)


def test_shares_are_those_of_whole_passes_with_values_of_the_other_run(vit, pictures, study):
    used, true, wrong, ((clean_logits, clean), (other_logits, other)) = both_runs(vit, pictures)
    assert len(used) > 1
    ends = difference(clean_logits, true, wrong), difference(other_logits, true, wrong)
    total = (ends[0] - ends[1]).sum()
    table = study.tables()["causes_patching"]
    for row in table[table["tokens"].isin(["all", "class"])].to_dict("records"):
        denoising = row["direction"] == "denoising"
        point = f"blocks.{row['block']}." + {"head": "attn.hook_z", "attn": "hook_attn_out", "mlp": "hook_mlp_out",
                                              "resid": "hook_resid_post"}[row["kind"]]  # fmt: skip
        new = (clean if denoising else other)[point]

        def put(value, point, row=row, new=new):
            value = value.clone()
            if row["kind"] == "head":
                value[:, int(row["head"])] = new[:, int(row["head"])]
            elif row["tokens"] == "class":
                value[:, 0] = new[:, 0]
            else:
                value = new
            return value

        inputs = other_side(pictures)[used] if denoising else pictures.images[used]
        with torch.no_grad(), vit.edits({point: put}):
            logits = vit(inputs)
        moved = difference(logits, true, wrong) - ends[1] if denoising else ends[0] - difference(logits, true, wrong)
        assert row["share"] == pytest.approx(float(moved.sum() / total), abs=1e-5)
        still = (logits.argmax(1) == true).double().mean()
        assert row["decisions"] == pytest.approx(100 * float(still if denoising else 1 - still))
        assert row["n_pairs"] == len(used)


def test_class_and_image_tokens_of_the_last_block(study):
    table = study.tables()["causes_patching"].set_index(["direction", "block", "tokens"])
    for direction in ("denoising", "noising"):  # the head reads the class token alone
        assert table.loc[(direction, 2, "class"), "share"] == pytest.approx(1, abs=1e-6)
        assert table.loc[(direction, 2, "image"), "share"] == 0


def test_heads_and_mlps_are_exchanged_token_by_token_too(vit, pictures, mirrored):
    options = {"pairs": ["mirrored"], "blocks": [1], "directions": ["denoising"], "null": False}
    whole = create_analysis("causes.patching", kinds=["head", "mlp"], **options)
    each = create_analysis("causes.patching", kinds=["head", "mlp"], tokens="each", by_token=["head", "mlp"], **options)
    measure(vit, [pictures], [whole, each])
    used, true, wrong, ((clean_logits, clean), (other_logits, _)) = both_runs(vit, pictures)
    ends = difference(clean_logits, true, wrong), difference(other_logits, true, wrong)
    table = each.tables()["causes_patching_tokens"].set_index(["component", "token"])
    assert len(table) == 5 * 17

    def put(value, point):
        value = value.clone()
        value[:, 2, 5] = clean[point][:, 2, 5]
        return value

    with torch.no_grad(), vit.edits({"blocks.1.attn.hook_z": put}):
        moved = difference(vit(other_side(pictures)[used]), true, wrong) - ends[1]
    found = table.loc[("head.1.2", 5), "share"]
    assert found == pytest.approx(float(moved.sum() / (ends[0] - ends[1]).sum()), abs=1e-5)
    sums = table.groupby("component")["estimate"].sum()  # to first order, tokens add up
    expected = whole.tables()["causes_patching"].set_index("component")["estimate"]
    assert sums.to_dict() == pytest.approx(expected.to_dict(), abs=1e-5)


def test_a_random_direction_is_as_long_as_the_difference(vit, pictures, study):
    _, _, _, ((_, clean), (_, other)) = both_runs(vit, pictures)
    part = Component("mlp", 1)
    sides = [type("Side", (), {"values": values})() for values in (other, clean)]
    study.components = [part]
    ((point, edit),) = study._random(pictures.rows(torch.arange(len(other[part.point]))), *sides, [None])[0].items()
    moved = edit(other[point], point) - other[point]
    wanted = (clean[point] - other[point]).norm(dim=-1)
    assert torch.allclose(moved.norm(dim=-1), wanted, rtol=1e-4)
    along = (moved * (clean[point] - other[point])).sum(-1) / wanted**2
    assert along.abs().mean() < 0.3  # and elsewhere


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_estimate_of_the_last_mlp_is_exact_where_the_final_norm_is_the_identity(vit, pictures, dtype):
    module = copy.deepcopy(vit.module).to(dtype)
    module.norm = nn.Identity()
    model = Model(module, vit.name, vit.preprocess)
    images, others = pictures.images.to(dtype), other_side(pictures).to(dtype)
    name, labels = "blocks.2.hook_mlp_out", pictures.labels

    def metric(outputs):
        return difference(outputs, labels, (labels + 1) % 10)

    with torch.no_grad():
        (_, clean), (plain, other) = (model.run_with_cache(x, [name]) for x in (images, others))
    gradients = point_gradients(model, others, [name], metric)
    guess = first_order(clean, other, gradients)[name].sum(-1)
    part = Component("mlp", 2)
    exact = metric(Prefix(model, others).run([{name: exchange(part, clean[name])}])) - metric(plain)
    assert (guess - exact).abs().max() < 1e-5
    assert exact.abs().max() > 0.1


def test_gradients_are_those_of_finite_differences(vit, pictures):
    model = Model(copy.deepcopy(vit.module).double(), vit.name, vit.preprocess)
    images, name = pictures.images[:2].double(), "blocks.1.attn.hook_z"
    metric = lambda outputs: outputs[:, 3] - outputs[:, 5]  # noqa: E731
    gradient = point_gradients(model, images, [name], metric)[name]
    direction = torch.randn(gradient.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    with torch.no_grad():
        ends = []
        for step in (1e-5, -1e-5):
            with model.edits({name: lambda value, point, step=step: value + step * direction}):
                ends.append(metric(model(images)))
    slope = (ends[0] - ends[1]) / 2e-5
    assert torch.allclose((gradient * direction).flatten(1).sum(1), slope, rtol=1e-6)
    assert all(p.grad is None for p in model.module.parameters())


@pytest.mark.parametrize("family", ["opt", "gpt-neox", "bert"])
def test_text_models_have_gradients_wherever_the_points_exist(tools, family):
    model, batch = tools["text_model"](family), tools["texts"]()
    names = ["blocks.*.attn.hook_z", "blocks.*.hook_attn_out", "blocks.*.hook_mlp_out", "blocks.*.hook_resid_post"]
    found = point_gradients(model, batch.inputs, names, lambda outputs: outputs[:, 2, 7])
    assert len(found) == 8
    assert all(float(gradient.abs().max()) > 0 for name, gradient in found.items() if "blocks.0" in name)


def test_a_point_without_a_gradient_or_without_existence_is_said(vit, pictures, tools):
    metric = lambda outputs: outputs[:, 0]  # noqa: E731
    with pytest.raises(VitscopeError, match=r"hook_pattern has no gradient: fused attention"):
        point_gradients(vit, pictures.images, ["blocks.1.attn.hook_pattern"], metric)
    with pytest.raises(VitscopeError, match="Did you mean"):
        point_gradients(vit, pictures.images, ["blocks.1.hook_mlpout"], metric)
    with pytest.raises(VitscopeError, match=r"There is no blocks\.0\.hook_resid_mid"):
        point_gradients(tools["text_model"]("gpt-neox"), tools["texts"]().inputs, ["blocks.0.hook_resid_mid"], metric)


def test_estimates_rank_like_exact_patches_where_they_should(study):
    table = study.tables()["causes_patching_agreement"].set_index(["direction", "kind"])
    exact = study.tables()["causes_patching"]
    heads = exact[(exact["kind"] == "head") & (exact["direction"] == "denoising")]
    wanted = rank_correlation(torch.tensor(heads["share"].to_numpy()), torch.tensor(heads["estimate"].to_numpy()))
    assert table.loc[("denoising", "head"), "of_means"] == pytest.approx(wanted)
    assert wanted == pytest.approx(heads["share"].corr(heads["estimate"], method="spearman"))
    assert table.loc[("denoising", "head"), "components"] == 12


def test_a_path_leads_through_the_receiver_alone(vit, pictures, study):
    """Written out: the residual stream before the receiver, with what the sender adds otherwise; nobody else hears."""
    _, true, wrong, ((clean_logits, clean), (other_logits, other)) = both_runs(vit, pictures)
    module, head, block = vit.module, 2, 2
    with torch.no_grad():
        z = other["blocks.0.attn.hook_z"].clone()
        z[:, 1] = clean["blocks.0.attn.hook_z"][:, 1]
        attn = module.blocks[0].attn.proj(z.transpose(1, 2).flatten(2))
        heard = other["blocks.2.hook_resid_pre"] + attn - other["blocks.0.hook_attn_out"]
        receiver = module.blocks[block]
        qkv = (
            receiver.attn.qkv(receiver.norm1(heard)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        )  # (3, B, H, N, D)
        q, k, v = (other[f"blocks.2.attn.hook_{x}"].clone() for x in "qkv")
        for own, new in zip((q, k, v), qkv):
            own[:, head] = new[:, head]
        mixed = torch.softmax(q @ k.transpose(-2, -1) / 8**0.5, -1) @ v
        x = other["blocks.2.hook_resid_pre"] + receiver.attn.proj(mixed.transpose(1, 2).flatten(2))
        x = x + receiver.mlp(receiver.norm2(x))
        logits = module.head(module.norm(x)[:, 0])
    ends = difference(clean_logits, true, wrong), difference(other_logits, true, wrong)
    wanted = (difference(logits, true, wrong) - ends[1]).sum() / (ends[0] - ends[1]).sum()
    table = study.tables()["causes_patching_paths"].set_index(["direction", "receiver"])
    assert table.loc[("denoising", "head.2.2"), "share"] == pytest.approx(float(wanted), abs=1e-5)
    assert abs(wanted) > 1e-4
    assert table.loc[("denoising", "head.1.3"), "through"] == "v"


def test_pairs_that_agree_or_are_wrong_are_counted_and_left_out(vit, pictures):
    @register_pairs("same")
    class Same(Pairs):
        def partners(self, batch):
            return Partners(batch.images.clone(), torch.ones(len(batch), dtype=torch.bool))

    batch = replace(pictures, targets=torch.where(torch.arange(6) < 2, (pictures.labels + 1) % 10, pictures.labels))
    found = create_analysis("causes.patching", pairs=["same"])
    measure(vit, [batch], [found])
    tables = found.tables()
    assert [*tables] == ["causes_patching_pairs"]
    assert tables["causes_patching_pairs"].to_dict("records") == [
        {"pairs": "same", "items": 6, "clean_wrong": 2, "made": 4, "agree_already": 4, "used": 0}
    ]


def test_pairs_of_different_sizes_are_an_error(vit, pictures):
    @register_pairs("smaller")
    class Smaller(Pairs):
        def partners(self, batch):
            return Partners(batch.images[..., :14], torch.ones(len(batch), dtype=torch.bool))

    with pytest.raises(DataError, match=r"\(6, 3, 28, 28\) and its partner \(6, 3, 28, 14\)"):
        measure(vit, [pictures], [create_analysis("causes.patching", pairs=["smaller"])])


def test_two_halves_add_up_to_the_whole(vit, tools, mirrored):
    batches = [tools["pictures"](vit, 4), tools["pictures"](vit, 3, first=4)]
    whole, first, second = (create_analysis("causes.patching", pairs=["mirrored"], kinds=["attn"]) for _ in range(3))
    measure(vit, batches, [whole])
    measure(vit, batches[:1], [first])
    measure(vit, batches[1:], [second])
    first.merge(second)
    for key, sums in whole.sums.items():
        assert torch.allclose(sums, first.sums[key], atol=1e-9)


def test_words_are_checked(vit):
    for options, message in (
        ({"pairs": ["pgd"]}, "do not say how strong: pgd@1/255"),
        ({"pairs": ["fog@3"]}, r"Expected ATTACK@EPS .*corrupt:fog@3"),
        ({"pairs": ["corrupt:fogg@3"]}, "Did you mean fog"),
        ({"pairs": ["corrupt:fog@9"]}, "from 1 to 5"),
        ({"pairs": ["corrupt:blur@3"]}, "one corruption and one severity"),
        ({"pairs": ["class@3"]}, "typed by itself"),
        ({"pairs": ["clas"]}, "Did you mean class"),
        ({"pairs": ["class"], "directions": ["noise"]}, "Did you mean noising"),
        ({"pairs": ["class"], "paths": ["2.1>1.0"]}, "a head of a later block"),
        ({"pairs": ["class"], "paths": ["2.1"]}, "expected HEAD>HEAD"),
    ):
        with pytest.raises(VitscopeError, match=message):
            create_analysis("causes.patching", **options)
    with pytest.raises(VitscopeError, match="Which pairs"):
        create_analysis("causes.patching").start(vit)
    assert path_named("8.1>11.2:vq").through == "vq"


def test_a_word_is_swapped_for_another_one_of_the_same_text(tools, monkeypatch):
    from vitscope.analyses.causes.pair_words import parse_pairs
    from vitscope.robustness.text.swapped_pairs import SwappedWord
    from vitscope.tasks.language import Language

    class Words:
        def words(self, ids):
            return [["the", "dog", "cat", "runs", "fast", "of", "house"][i % 7] for i in ids]

    monkeypatch.setattr("vitscope.robustness.text.swapped_pairs.tokenizing", lambda model: Words())
    model, batch = tools["text_model"]("gpt2"), tools["texts"]((12, 9, 3))
    maker = SwappedWord(parse_pairs("swap"))
    maker.start(model, Setting(task=Language()))
    found = maker.partners(batch)
    old, new = batch.inputs["input_ids"], found.inputs["input_ids"]
    for row in range(3):
        changed = (old[row] != new[row]).nonzero().flatten().tolist()
        assert len(changed) == int(found.made[row])
        for place in changed:
            word = Words().words([int(old[row, place])])[0]
            assert word not in ("the", "of")
            assert new[row, place] in old[row]
            assert found.groups["swapped"][row].nonzero().flatten().tolist() == [place]
    assert found.made.any()
    pieces = {1: " red", 2: " gr", 3: "een", 4: " bl", 5: "ue", 6: " it", 7: " is"}
    maker.tokenizer = type("Pieces", (), {"words": lambda self, ids: [pieces[i] for i in ids]})()
    tokens = torch.tensor([6, 7, 2, 3, 1, 4, 5])  # it is green red blue: two words of two pieces, one of one
    place, others = maker.swap(tokens, torch.ones(7, dtype=torch.bool), 0)
    assert (place, others.tolist()) in ((2, [4, 5]), (5, [2, 3]))
    study = create_analysis("causes.patching", pairs=["swap"], kinds=["resid", "mlp"])
    study.setting = Setting(task=Language())
    with torch.no_grad():  # targets that the clean run gets right
        right = model(batch.inputs).argmax(-1)
    batch = replace(batch, targets=torch.where(batch.targets >= 0, right, -1))
    measure(model, [batch], [study])
    table = study.tables()["causes_patching"].set_index(["kind", "direction", "block", "tokens"])
    for direction in ("denoising", "noising"):
        before = table.loc[("resid", direction, 0, "before"), "share"]
        assert before == 0  # a causal model: nothing before the word knows of it
        assert table.loc[("resid", direction, 0, "swapped"), "share"] > 0


@pytest.mark.parametrize(("word", "eps"), [("fgsm@8/255", 8 / 255), ("corrupt:contrast@5", None)])
def test_changed_pictures_are_those_of_attack_and_evaluate(vit, pictures, word, eps):
    (maker,) = create_analysis("causes.patching", pairs=[word]).makers
    maker.start(vit, Setting(seed=3))
    found = maker.partners(pictures)
    pixels = pictures.images * 0.5 + 0.5
    if eps is not None:
        wanted = perturb(vit, (pixels * 255).round() / 255, pictures.labels, "fgsm", "8/255", seed=3)
        assert float((found.inputs * 0.5 + 0.5 - pixels).abs().max()) <= eps + 1e-6
    else:
        seeds = [image_seed(3, name, "contrast", 5) for name in pictures.names]
        wanted = corrupt((pixels * 255).round().to(torch.uint8), "contrast", 5, seeds) / 255
    assert torch.allclose(found.inputs, (wanted - 0.5) / 0.5, atol=1e-6)
    assert not torch.equal(found.inputs, pictures.images)
    assert found.made.all()


def test_another_class_is_another_image_drawn_by_its_number(vit):
    data = load_data("mnist5k", images=30)
    (maker,) = create_analysis("causes.patching", pairs=["class"]).makers
    preprocess = replace(vit.preprocess, input_size=(3, 28, 28))
    maker.start(Model(vit.module, vit.name, preprocess), Setting())
    maker.prepare(data)
    alone = list(data.batches(preprocess, 10))
    parts = [maker.partners(batch) for batch in alone]
    (whole,) = data.batches(preprocess, 30)
    found = maker.partners(whole)
    assert torch.equal(found.inputs, torch.cat([part.inputs for part in parts]))
    for i, image in enumerate(found.inputs):
        (same,) = [j for j, other in enumerate(whole.images) if torch.equal(image, other)]
        assert whole.labels[same] != whole.labels[i]


def test_a_masked_object_is_painted_over(vit, pictures):
    (maker,) = create_analysis("causes.patching", pairs=["mask"]).makers
    found = maker.partners(pictures)
    assert not found.inputs[:, :, 7:21, 7:21].any()
    outside = pictures.masks[:, None].expand_as(found.inputs) == 0
    assert torch.equal(found.inputs[outside], pictures.images[outside])


def test_pairs_need_what_they_are_made_of(vit, pictures, tools):
    data = load_data("mnist5k", images=20)
    create_analysis("causes.patching", pairs=["mask"]).makers[0].check_data(data)  # digits have masks
    plain = load_data("mnist5k", images=20, masks=False)
    with pytest.raises(UnsuitableDataError, match="has no masks"):
        create_analysis("causes.patching", pairs=["mask"]).makers[0].check_data(plain)
    with pytest.raises(VitscopeError, match="takes pictures"):
        create_analysis("causes.patching", pairs=["swap"]).start(vit)
