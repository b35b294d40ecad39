"""Attribution in one pass, against one image after the other in float64."""

from __future__ import annotations

import sys
from copy import deepcopy
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import vitscope
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.base import Setting
from vitscope.analyses.causes.questions import random_others
from vitscope.data.batch import Batch
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.decomposition import Part
from vitscope.statistics.clusters import means_of_clusters, ratio

sys.path.insert(0, str(Path(__file__).parents[2]))
from text_batches import text_batches
from text_models import build

SIZES = {"depth": 2, "num_classes": 7, "img_size": 64, "embed_dim": 48, "num_heads": 3}
NAMES = ["vit_tiny_patch16_224", "deit_tiny_distilled_patch16_224", "beitv2_base_patch16_224",
         "vit_relpos_small_patch16_224", "vit_relpos_small_patch16_rpn_224"]  # fmt: skip


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def opened(name: str) -> vitscope.Model:
    model = vitscope.open_model(name, "random", **SIZES)
    generator = torch.Generator().manual_seed(0)
    for parameter in model.module.parameters():
        parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model


def pictures(sizes: tuple[int, ...] = (4, 3, 5)) -> list[Batch]:
    generator, found, first = torch.Generator().manual_seed(1), [], 0
    for number, size in enumerate(sizes):
        images, labels = (
            torch.randn(size, 3, 64, 64, generator=generator),
            torch.randint(0, 7, (size,), generator=generator),
        )
        labels[1] = -1 if number == 0 else labels[1]  # not known: not counted
        where = torch.arange(first, first + size)
        found.append(Batch(images, labels, where, [f"{i}" for i in where.tolist()], number=number))
        first += size
    return found


def measured(model, batches, **options):
    analysis = create_analysis("causes.attribution", **options)
    measure(model, deepcopy(batches), [analysis])
    return analysis


def one_by_one(model, batches, target, minus) -> dict[str, list[tuple[bool, np.ndarray]]]:
    """{image: (right, shares)} through run_with_cache and attribute, in float64."""
    twin = vitscope.open_model(deepcopy(model.module).double())
    found = []
    for batch in batches:
        for image, label in zip(batch.inputs.double(), batch.targets.tolist()):
            if label < 0:
                continue
            logits, cache = twin.run_with_cache(image[None])
            best = int(logits.argmax())
            chosen = {"label": label, "prediction": best}.get(target, target)
            others = logits[0].clone()
            others[chosen] = -torch.inf
            other = {"none": None, "best": int(others.argmax())}.get(minus, minus)
            shares = twin.attribute(cache, chosen, other).values[:, 0]
            found.append((best == label, shares.numpy()))
    return found


@pytest.mark.parametrize(
    ("name", "target", "minus"),
    [*((name, "label", "none") for name in NAMES), (NAMES[1], "label", "best"), (NAMES[4], "label", "best"),
     (NAMES[0], "prediction", "none"), (NAMES[3], 2, 5)],
)  # fmt: skip
def test_every_mean_is_that_of_a_loop_over_images(name, target, minus):
    model, batches = opened(name), pictures()
    analysis = measured(model, batches, target=target, minus=minus)
    expected = one_by_one(model, batches, target, minus)
    table = analysis.tables()["causes_attribution"]
    for images, inside in {"all": (0, 1), "right": (1,), "wrong": (0,)}.items():
        rows, values = table[table["images"] == images], [shares for right, shares in expected if right in inside]
        if not values:
            assert not len(rows)
            continue
        assert list(rows["part"]) == [part.name for part in model.decomposition.parts]
        np.testing.assert_allclose(rows["mean"], np.mean(values, 0), atol=1e-5)
        np.testing.assert_allclose(rows["size"], np.abs(values).mean(0), atol=1e-5)
        assert set(rows["n"]) == set(rows["answers"]) == {len(values)}
        half = 1.96 * np.std(values, 0, ddof=1) / len(values) ** 0.5 if len(values) > 1 else np.zeros(len(rows))
        found = (rows["mean_high"] - rows["mean"]).to_numpy()
        known = np.isfinite(found) | (half > 1e-6)  # where all images agree, as on a bias, there is no interval
        np.testing.assert_allclose(found[known], half[known], rtol=1e-3, atol=1e-5)
        assert rows["share"].sum() == pytest.approx(100)


def test_the_means_of_all_parts_add_up_to_the_mean_logit():
    model, batches = opened("vit_tiny_patch16_224"), pictures()
    tables = measured(model, batches).tables()
    logits = torch.cat([model(b.inputs) for b in batches])
    labels = torch.cat([b.targets for b in batches])
    mean = float(logits[labels >= 0].gather(1, labels[labels >= 0][:, None]).mean())
    parts, blocks = tables["causes_attribution"], tables["causes_attribution_blocks"]
    assert parts[parts["images"] == "all"]["mean"].sum() == pytest.approx(mean, abs=1e-5)
    rows = blocks[blocks["images"] == "all"]
    assert rows["so_far"].iloc[-1] == pytest.approx(mean, abs=1e-5)
    heads = parts[(parts["images"] == "all") & (parts["block"] == 1) & parts["kind"].isin(["head", "attn_bias"])]
    attention = rows[(rows["block"] == 1) & (rows["kind"] == "attention")].iloc[0]
    assert attention["mean"] == pytest.approx(heads["mean"].sum())
    assert attention["specific"] == pytest.approx(heads["specific"].sum())


def test_the_null_is_the_attribution_to_the_drawn_class():
    model, batches = opened("vit_tiny_patch16_224"), pictures()
    table = measured(model, batches).tables()["causes_attribution"]
    shares = []
    for batch in batches:
        known = (batch.targets >= 0).nonzero()[:, 0]
        labels, place = batch.targets[known], torch.zeros_like(known)
        drawn = random_others(labels, place, batch.indices[known], 7, seed=0)
        assert not (drawn == labels).any()
        _, cache = model.run_with_cache(batch.inputs[known])
        shares.append(model.attribute(cache, drawn).values)
    np.testing.assert_allclose(table[table["images"] == "all"]["null"], torch.cat(shares, 1).mean(1), atol=1e-5)


def test_random_classes_are_even_and_the_same_in_any_company():
    than, images = torch.full((2000,), 3), torch.arange(2000)
    drawn = random_others(than, torch.zeros(2000, dtype=torch.int64), images, 5, seed=1)
    counts = torch.bincount(drawn, minlength=5)
    assert counts[3] == 0
    assert all(abs(int(c) - 500) < 90 for i, c in enumerate(counts) if i != 3)
    some = torch.tensor([17, 1500])
    alone = random_others(than[some], torch.zeros(2, dtype=torch.int64), images[some], 5, seed=1)
    assert torch.equal(alone, drawn[some])


@pytest.mark.parametrize("name", ["gpt2", "llama", "gpt-neox"])
@pytest.mark.parametrize("options", [{}, {"minus": "best"}, {"positions": "last"}])
def test_of_a_text_every_token_that_has_a_target_is_split(name, options):
    model = vitscope.open_model(build(name))
    batches = text_batches((9, 5, 2, 6), (2, 2))
    for batch in batches:
        batch.targets[:, :-1] = torch.where(batch.valid[:, 1:], batch.inputs["input_ids"][:, 1:], -1)
    analysis = measured(model, batches, **options)
    table = analysis.tables()["causes_attribution"]
    expected, documents = [], []
    for batch in batches:
        logits, cache = model.run_with_cache(batch.inputs)
        asked = batch.targets >= 0
        other = None
        if options.get("minus"):
            other = logits.scatter(2, batch.targets.clamp(min=0)[..., None], -torch.inf).argmax(-1)
        shares = model.attribute(cache, batch.targets.clamp(min=0), other).values
        for i, text in enumerate(asked):
            tokens = text.nonzero()[:, 0].tolist()
            tokens = tokens[-1:] if options.get("positions") else tokens
            expected += [shares[:, i, t].numpy() for t in tokens]
            documents += [int(batch.indices[i])] * len(tokens)
    rows = table[table["images"] == "all"]
    np.testing.assert_allclose(rows["mean"], np.mean(expected, 0), atol=1e-5)
    assert set(rows["answers"]) == {len(expected)}
    assert set(rows["n"]) == {4}  # intervals are over texts, not over tokens


def test_halves_merge_to_the_tables_of_one():
    model, batches = opened("vit_tiny_patch16_224"), pictures()
    whole, first, second = measured(model, batches), measured(model, batches[:1]), measured(model, batches[1:])
    first.merge(second)
    for name, table in whole.tables().items():
        pd.testing.assert_frame_equal(first.tables()[name], table, check_exact=True)


def test_ratios_of_many_values_are_those_of_one_by_one():
    generator = torch.Generator().manual_seed(0)
    totals, sizes = torch.randn(9, 2, 3, generator=generator), torch.randint(0, 4, (9,), generator=generator)
    totals[sizes == 0] = 0
    values = torch.stack(means_of_clusters(totals, sizes))
    for i in range(2):
        for j in range(3):
            y, m = totals[sizes > 0, i, j].double(), sizes[sizes > 0].double()
            sums = {
                "n": len(m),
                "m": m.sum(),
                "mm": (m * m).sum(),
                "y": y.sum(),
                "yy": (y * y).sum(),
                "ym": (y * m).sum(),
            }
            one = ratio({name: float(value) for name, value in sums.items()} | {"mean": 0.0})
            assert values[:, i, j].tolist() == pytest.approx([one.value, one.low, one.high])
    assert means_of_clusters(torch.ones(1, 2), torch.ones(1))[1].isnan().all()


def test_the_best_heads_are_chosen_on_the_other_half():
    """Heads that say nothing but noise carry nothing, however well the best of them does on its own half."""
    from vitscope.analyses.causes.attribution_tables import attribution_tables

    generator = torch.Generator().manual_seed(0)
    parts = [Part("embedding"), *(Part("head", 0, h) for h in range(30))]
    values = torch.zeros(200, 2, 3, 31, dtype=torch.float64)
    values[:, 1, 0] = torch.randn(200, 31, generator=generator, dtype=torch.float64)
    values[:, 1, 0, 0] = 10  # all that speaks for the class is the embedding
    n = torch.zeros(200, 2)
    n[:, 1] = 1
    top = attribution_tables(n, values, parts, seed=0)["causes_attribution_top"].set_index("heads")
    assert top.loc[5, "share_low"] < 0 < top.loc[5, "share_high"]
    lucky = values[:, 1, 0, 1:].mean(0).sort(descending=True).values[:5].sum() / 10 * 100
    assert float(lucky) > top.loc[5, "share_high"]
    values[:, 1, 0, 3] += 5  # one head says a third
    top = attribution_tables(n, values, parts, seed=0)["causes_attribution_top"].set_index("heads")
    assert top.loc[1, "share"] == pytest.approx(100 / 3, abs=1)
    assert top.loc[1, "share_low"] > top.loc[1, "random"]


def test_bad_input_is_answered_with_what_there_is():
    model, batches = opened("vit_tiny_patch16_224"), pictures()
    for options, message in {
        ("target", 7): "target=7: the model has the classes 0 to 6",
        ("minus", 9): "minus=9: the model has the classes 0 to 6",
        ("minus", "label"): "expected none, best",
        ("target", "lable"): "Did you mean label",
        ("positions", "first"): "all or last",
    }.items():
        with pytest.raises(VitscopeError, match=message):
            measured(model, batches, **dict([options]))
    with pytest.raises(VitscopeError, match="one class twice"):
        measured(model, batches, target=3, minus=3)
    with pytest.raises(UnsupportedModelError, match="no classes"):
        measured(vitscope.open_model("vit_tiny_patch16_224", "random", **{**SIZES, "num_classes": 0}), batches)
    with pytest.raises(UnsupportedModelError, match="normalise the sum"):
        measured(vitscope.open_model(build("bert")), text_batches((5, 4)))
    with (
        pytest.raises(VitscopeError, match="do not add up"),
        model.edits({"blocks.0.hook_attn_out": lambda x, _: 2 * x}),
    ):
        measured(model, batches)


def test_a_data_set_without_any_label_has_no_tables():
    model, (batch, *_) = opened("vit_tiny_patch16_224"), pictures()
    batch.targets[:] = -1
    assert measured(model, [batch]).tables() == {}


def test_the_seed_of_the_run_draws_the_null():
    model, batches = opened("vit_tiny_patch16_224"), pictures()
    found = []
    for seed in (0, 1):
        analysis = create_analysis("causes.attribution")
        analysis.setting = Setting(seed=seed)
        measure(model, deepcopy(batches), [analysis])
        found.append(analysis.tables()["causes_attribution"])
    assert found[0]["mean"].equals(found[1]["mean"])
    assert not found[0]["null"].equals(found[1]["null"])
