"""The streaming analyses on a real, small model: their tables are those of a direct computation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses import create_analysis, measure, tables_of
from vitscope.analyses.kpca import order
from vitscope.analyses.kpca.analysis import attention_remarks
from vitscope.analyses.kpca.gamma import VECTORS
from vitscope.analyses.kpca.keygram import KeyGram
from vitscope.analyses.kpca.norms import QUANTILES
from vitscope.analyses.kpca.reconstruction import errors, squared_norms
from vitscope.analyses.kpca.spectrum import published_statistics
from vitscope.analyses.kpca.values import MEASURES, Side, measures, theoretical_side
from vitscope.analyses.selection import choose_analyses
from vitscope.errors import NumericalError, UnsupportedModelError, VitscopeError

ROOMY = {"img_size": 32, "patch_size": 4, "embed_dim": 16}  # 65 tokens, heads of 8: no axis is mere rounding
NAMES = ["kpca.gamma", "kpca.norms", "kpca.reconstruction", "kpca.spectrum", "kpca.values"]


def run(model, batches, *names, **options):
    """Analyses by name after all batches, and their rows per image."""
    analyses = [create_analysis(name, **options) for name in names]
    measure(model, batches, analyses)
    return analyses[0] if len(analyses) == 1 else analyses


def rows_of(analysis, table: str) -> pd.DataFrame:
    rows = pd.concat(analysis.rows[table], ignore_index=True)
    return rows.sort_values([c for c in ("image", "block", "vectors", "values") if c in rows], ignore_index=True)


def captured(model, batch):
    """q, k, v of all blocks: each (blocks, B, H, N, D)."""
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.*.attn.hook_[qkv]")
    blocks = range(model.layout.blocks)
    return [torch.stack([cache[f"blocks.{i}.attn.hook_{x}"] for i in blocks]) for x in "qkv"]


def pick(table: pd.DataFrame, **where) -> pd.DataFrame:
    for column, value in where.items():
        table = table[table[column] == value]
    return table


def test_all_five_are_registered_and_stand_under_one_name():
    assert [a.name for a in choose_analyses(["kpca"])] == NAMES
    assert [a.name for a in choose_analyses({"kpca": {"variant": "code"}})] == NAMES
    assert not any(a.name.startswith("kpca") for a in choose_analyses(None))


def test_an_option_of_the_group_is_one_of_each_member():
    from vitscope.analyses.request import AnalyzeOptions

    chosen = AnalyzeOptions(only=("kpca",), set={"kpca.every": 10, "kpca.values.axes": "kpca"}).analyses()
    assert list(chosen) == NAMES
    assert all(options["every"] == 10 for options in chosen.values())
    assert [name for name, options in chosen.items() if "axes" in options] == ["kpca.values"]


def test_spectrum_tables_are_those_of_a_direct_computation(small_model, batches):
    model = small_model()
    analysis = run(model, batches([3, 2]), "kpca.spectrum")
    _, k, _ = captured(model, batches([5])[0])
    gram = KeyGram(k.flatten(0, 1))
    values = (gram.eigenvalues * gram.log_scale.exp()[..., None]).reshape(2, 5, 2, 17)
    tables = analysis.tables()
    found = pick(tables["kpca_eigenvalues"], block=1)
    np.testing.assert_allclose(found["mean"], values[1, ..., :16].mean((0, 1)), rtol=1e-9)
    np.testing.assert_allclose(found["log10_mean"], values[1, ..., :16].log10().mean((0, 1)), rtol=1e-9)
    found = pick(tables["kpca_spectrum"], metric="largest", block=0, head=1)
    assert found["mean"].item() == pytest.approx(float(values[0, :, 1, 0].mean()))
    assert found["std"].item() == pytest.approx(float(values[0, :, 1, 0].std(correction=0)))
    expected = published_statistics(values[..., :16].mean((0, 2)))  # by rank, over blocks and heads: (5, 16)
    for name, value in expected.items():
        row = pick(tables["kpca_eigenvalue_statistics"], statistic=name)
        assert row["mean"].item() == pytest.approx(float(value.mean()))
        assert row["std"].item() == pytest.approx(float(value.std(correction=0)))
        np.testing.assert_allclose(rows_of(analysis, "kpca_spectrum_images")[name], value, rtol=1e-9)
    assert pick(tables["kpca_eigenvalue_statistics"], statistic="max")["bound"].item() == 17


def test_the_covariance_has_the_eigenvalues_of_the_gram_matrix_divided_by_n(small_model, batches):
    gram, covariance = (
        run(small_model(), batches([2]), "kpca.spectrum", of=of).tables() for of in ("gram", "covariance")
    )
    np.testing.assert_allclose(gram["kpca_eigenvalues"]["mean"] / 17, covariance["kpca_eigenvalues"]["mean"])
    assert pick(covariance["kpca_eigenvalue_statistics"], statistic="max")["bound"].item() == 1


def test_reconstruction_tables_are_those_of_a_direct_computation(small_model, batches):
    model = small_model()
    analysis = run(model, batches([3, 2]), "kpca.reconstruction")
    expected = errors(**squared_norms(*captured(model, batches([5])[0])))  # each (blocks, B, H, N)
    table = analysis.tables()["kpca_reconstruction"]
    for metric, value in expected.items():
        found = pick(table, metric=metric).pivot(index="block", columns="head", values="mean")
        np.testing.assert_allclose(found, value.mean((1, 3)), rtol=1e-9)
    rows = rows_of(analysis, "kpca_reconstruction_images")
    np.testing.assert_allclose(pick(rows, block=1)["violation"], expected["violation"][1].mean((1, 2)))
    assert analysis.summary()["violation"].value == pytest.approx(100 * float(expected["violation"].mean()))


def test_the_released_code_s_log_is_reported_with_the_share_of_images_that_have_one(small_model, batches):
    model = small_model()
    table = run(model, batches([5]), "kpca.reconstruction", variant="code").tables()["kpca_reconstruction_logged"]
    error = errors(**squared_norms(*captured(model, batches([5])[0]), variant="code"))["error"].mean((2, 3))  # (2, 5)
    for block in range(2):
        exists = error[block] > 0
        assert table["exists"][block] == pytest.approx(float(exists.double().mean()))
        mean = float(error[block].mean())  # of the whole batch, as the program takes it
        assert table["log_mean_error"][block] == pytest.approx(np.log(mean) if mean > 0 else np.nan, nan_ok=True)


def test_order_statistics_of_the_norms_are_right_to_the_stated_bound(small_model, batches):
    model = small_model()
    analysis = run(model, batches([3, 2]), "kpca.norms")
    expected = squared_norms(*captured(model, batches([5])[0]))
    table = analysis.tables()["kpca_norms"]
    phi, h = expected["log_phi"].exp(), expected["h"]  # each (blocks, B, H, N)
    ratio = analysis.tables()["kpca_norms_ratio"].assign(norm="ratio")
    np.testing.assert_allclose(ratio["of_means"], h.mean((1, 2, 3)) / phi.mean((1, 2, 3)))
    medians = table.pivot(index="block", columns="norm", values="median")
    np.testing.assert_allclose(ratio["of_medians"], medians["h"] / medians["phi"])
    table = pd.concat([table, ratio], ignore_index=True)
    for norm, value in (("phi", phi), ("h", h), ("ratio", h / phi)):
        for block in range(2):
            row = pick(table, norm=norm, block=block)
            assert row["mean"].item() == pytest.approx(float(value[block].mean()))
            for name, q in QUANTILES.items():
                assert row[name].item() == pytest.approx(np.quantile(value[block], q), rel=order.BOUND), name
            assert row["tokens"].item() == 5 * 2 * 17
    shares = analysis.tables()["kpca_norms_distribution"].groupby(["block", "norm"])["share"].sum()
    np.testing.assert_allclose(shares, 1)


def test_outlier_rules_remove_what_they_say(small_model, batches):
    model = small_model()
    whole, published = (
        run(model, batches([5]), "kpca.norms", outliers=rule).tables()["kpca_norms"] for rule in ("none", "above95")
    )
    assert (whole["kept"] == 1).all()
    assert published["kept"].between(0.945, 0.98).all()
    assert (published["q95"] < whole["q95"]).all()
    with pytest.raises(VitscopeError, match="expected one of none, above95, iqr"):
        create_analysis("kpca.norms", outliers="some")


def test_gamma_of_true_eigenvectors_stands_out_by_its_residual_alone(small_model, batches):
    analysis = run(small_model(), batches([3, 2]), "kpca.gamma")
    tables = analysis.tables()
    average = tables["kpca_gamma_average"]
    assert len(average) == 4 * 16
    assert pick(average, vectors="eigenvectors")["residual"].max() < 1e-6
    for kind in VECTORS[1:]:
        assert pick(average, vectors=kind)["residual"].mean() > 0.2
    per_block = tables["kpca_gamma"].groupby(["vectors", "axis"])["absolute"].mean()
    np.testing.assert_allclose(average.set_index(["vectors", "axis"])["absolute"].sort_index(), per_block.sort_index())
    images = rows_of(analysis, "kpca_gamma_images")
    np.testing.assert_allclose(
        pick(images, vectors="random")["relative"].mean(), pick(average, vectors="random")["relative"].mean()
    )
    heads = pick(tables["kpca_gamma_heads"], vectors="recovered", metric="off_centre")
    np.testing.assert_allclose(heads["mean"].mean(), pick(images, vectors="recovered")["off_centre"].mean())


def test_value_tables_are_those_of_a_direct_computation(small_model, batches):
    model = small_model()
    analysis = run(model, batches([3, 2]), "kpca.values")
    _, k, v = (x[1] for x in captured(model, batches([5])[0]))
    gram = KeyGram(k, vectors=16)
    expected = measures(Side.of(v.double()), theoretical_side(gram.vectors, gram.log_g), gram.log_g)
    table = analysis.tables()["kpca_values"]
    for metric in MEASURES:
        found = pick(table, metric=metric, values="learned", block=1)
        np.testing.assert_allclose(found["mean"], expected[metric].mean(0), rtol=1e-8, atol=1e-12)
    moved = measures(Side.of(v.double()).roll(), theoretical_side(gram.vectors, gram.log_g), gram.log_g)
    found = pick(table, metric="cca", values="other head", block=1)
    np.testing.assert_allclose(found["mean"], moved["cca"].mean(0), rtol=1e-8)
    model_table = analysis.tables()["kpca_values_model"]
    layer = pick(analysis.tables()["kpca_values_layers"], metric="cosine", values="learned", block=1)
    assert layer["mean"].item() == pytest.approx(float(expected["cosine"].mean()), abs=1e-9)
    mean = pick(table, metric="linear_cka", values="random")["mean"]
    row = pick(model_table, metric="linear_cka", values="random")
    assert (row["mean"].item(), row["highest_head"].item()) == pytest.approx((mean.mean(), mean.max()))


def test_the_length_of_axes_matters_only_to_measures_that_see_it(small_model, batches):
    unit, kpca = (
        run(small_model(), batches([2]), "kpca.values", axes=a).tables()["kpca_values_model"] for a in ("unit", "kpca")
    )
    for metric, same in (("cca", True), ("component", True), ("linear_cka", False), ("optimal_cosine", False)):
        a, b = (float(pick(t, metric=metric, values="learned")["mean"].item()) for t in (unit, kpca))
        assert (a == pytest.approx(b, rel=1e-6)) == same, metric


@pytest.mark.parametrize("name", NAMES)
def test_two_halves_merge_to_the_whole_and_rows_do_not_depend_on_the_batches(name, small_model, batches):
    model, parts = small_model(**ROOMY), batches([2, 3, 1], size=32)
    whole = run(model, batches([6], size=32), name)
    first, second = (create_analysis(name) for _ in range(2))
    measure(model, parts[:1], [first])
    measure(model, parts[1:], [second])
    first.merge(second)
    # the forward pass is float32 and rounds differently in batches of other sizes
    for table, expected in whole.tables().items():
        pd.testing.assert_frame_equal(first.tables()[table], expected, rtol=1e-3, atol=1e-6)
    for table in whole.rows:
        both = pd.concat([rows_of(first, table), rows_of(second, table)], ignore_index=True)  # in image order
        pd.testing.assert_frame_equal(both, rows_of(whole, table), rtol=1e-3, atol=1e-6)


def test_the_random_twin_is_measured_beside_the_model_in_the_same_pass(small_model, batches):
    from vitscope.analyses.control import shared_twin

    model = small_model()
    values, norms = run(model, batches([2, 1]), "kpca.values", "kpca.reconstruction", control="random")
    twin = run(shared_twin(model), batches([3]), "kpca.values")
    expected = twin.tables()["kpca_values"].drop(columns="weights")
    found = pick(tables_of(values)["kpca_values"], weights="random").drop(columns="weights").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, expected, rtol=1e-3, atol=1e-6)
    own = run(model, batches([3]), "kpca.reconstruction").tables()["kpca_reconstruction"]
    found = pick(tables_of(norms)["kpca_reconstruction"], weights="own").reset_index(drop=True)
    pd.testing.assert_frame_equal(found, own, rtol=1e-3, atol=1e-6)
    assert len(pd.concat(values.rows["kpca_values_images"])) == 3 * 2 * 3  # the twin leaves no rows


@pytest.mark.parametrize("name", NAMES)
def test_every_third_image_is_looked_at_wherever_the_batches_are_cut(name, small_model, batches):
    model = small_model(**ROOMY)
    whole = batches([9], size=32)[0]
    chosen = [0, 3, 6]
    whole.inputs, whole.labels, whole.indices = (x[chosen] for x in (whole.images, whole.labels, whole.indices))
    whole.paths = [whole.paths[i] for i in chosen]
    expected = run(model, [whole], name)
    found = run(model, batches([1, 2, 4, 2], size=32), name, every=3)
    assert found.images == 3
    for table, rows in expected.tables().items():
        pd.testing.assert_frame_equal(found.tables()[table], rows, rtol=1e-3, atol=1e-6)
    with pytest.raises(VitscopeError, match="every=0 leaves no image"):
        create_analysis(name, every=0)


def test_analyses_of_every_third_image_share_one_decomposition(small_model, batches, monkeypatch):
    made = []
    original = KeyGram.__init__
    monkeypatch.setattr(KeyGram, "__init__", lambda self, *a, **k: (made.append(1), original(self, *a, **k))[1])
    run(small_model(), batches([4]), *NAMES, every=3)
    assert len(made) == 2  # one per block


def test_one_image_is_enough_to_measure(small_model, batches):
    for analysis in run(small_model(), batches([1]), *NAMES):
        for name, table in analysis.tables().items():
            numbers = table.select_dtypes("number")
            assert np.isfinite(numbers).all(axis=None), name


def test_half_precision_models_are_computed_in_double_precision(small_model, batches):
    model = small_model()
    model.module.to(torch.bfloat16)
    for analysis in run(model, batches([2]), *NAMES):
        for name, table in analysis.tables().items():
            assert np.isfinite(table.select_dtypes("number")).all(axis=None), name
    residual = pick(analysis.tables()["kpca_values"], metric="cca")["mean"]
    assert residual.between(0, 1).all()


def test_long_keys_give_no_nan(small_model, batches):
    model = small_model()
    for block in model.module.blocks:
        block.attn.qkv.weight.data *= 10
    for analysis in run(model, batches([2]), *NAMES):
        for name, table in analysis.tables().items():
            assert np.isfinite(table.select_dtypes("number")).all(axis=None), name


def test_fewer_tokens_than_axes_are_refused_where_axes_are_needed(small_model, batches):
    model = small_model(embed_dim=64)  # 17 tokens, heads of 32
    for name in ("kpca.gamma", "kpca.values"):
        with pytest.raises(UnsupportedModelError, match="17 tokens and heads of size 32"):
            create_analysis(name).start(model)
    table = run(model, batches([1]), "kpca.spectrum").tables()["kpca_eigenvalues"]
    assert table["axis"].max() == 16


def test_a_single_head_has_no_other_head(small_model, batches):
    table = run(small_model(num_heads=1, embed_dim=16), batches([2]), "kpca.values").tables()["kpca_values"]
    assert set(table["values"]) == {"learned", "random"}


def test_nulls_can_be_left_out(small_model, batches):
    table = run(small_model(), batches([2]), "kpca.values", nulls=False).tables()["kpca_values"]
    assert set(table["values"]) == {"learned"}


def test_nan_in_the_keys_is_named_with_the_block(small_model, batches):
    model = small_model()
    model.module.blocks[1].attn.qkv.weight.data[0, 0] = float("nan")
    with pytest.raises(NumericalError, match="queries of block 1 hold NaN"):
        run(model, batches([1]), "kpca.reconstruction")


@pytest.mark.parametrize(("name", "options", "message"), [
    ("kpca.spectrum", {"variant": "paper"}, "expected one of exact, code"),
    ("kpca.reconstruction", {"variant": "text"}, "expected one of exact, paper, code"),
    ("kpca.spectrum", {"of": "keys"}, "expected 'gram' or 'covariance'"),
    ("kpca.values", {"axes": "long"}, "expected 'unit' or 'kpca'"),
    ("kpca.values", {"control": "other"}, "expected 'random'"),
])  # fmt: skip
def test_unknown_options_are_refused(name, options, message):
    with pytest.raises(VitscopeError, match=message):
        create_analysis(name, **options)


@pytest.mark.parametrize(("name", "remark"), [
    ("vit_tiny_patch16_224", None),
    ("vit_base_patch16_clip_224", None),
    ("beit_base_patch16_224", "bias left out"),
    ("vit_relpos_small_patch16_224", "bias left out"),
    ("eva02_tiny_patch14_224", "rotary position"),
    ("vit_small_patch16_rope_224", "rotary position"),
    ("vit_wee_patch16_reg1_gap_256", None),
])  # fmt: skip
def test_what_the_theorem_does_not_know_of_an_attention_is_said(name, remark):
    from vitscope.models import open_model

    model = open_model(name, "random", depth=1)
    remarks = " ".join(attention_remarks(model))
    assert (remark in remarks) if remark else not remarks
    normed = any("q_norm" in n and p.numel() for n, p in model.module.named_parameters())
    assert ("after their norm" in remarks) == normed
