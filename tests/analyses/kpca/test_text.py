"""Kernel PCA of texts: padding changes nothing, and every figure is that of a brute force over one text alone."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from vitscope.analyses.base import create_analysis, tables_of
from vitscope.analyses.kpca.gram import centred_gram
from vitscope.analyses.kpca.texts import LAST_QUERY, LAST_VIEW, PADDED, WINDOWS
from vitscope.analyses.one_pass import measure
from vitscope.errors import UnsuitableDataError
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[2]))
from text_batches import text_batches
from text_models import build

NAMES = [f"kpca.{name}" for name in ("spectrum", "reconstruction", "norms", "gamma", "values")]
LENGTHS = (12, 20, 9, 12)


def tiny(family, dtype=torch.float64):
    return open_model(build(family).to(dtype))


def measured(model, batches, names=NAMES, **options):
    analyses = [create_analysis(name, **options) for name in names]
    measure(model, batches, analyses)
    return {analysis.name: analysis for analysis in analyses}


def tables(found):
    """Everything they give, rows per text in the order of texts."""
    given = {name: table for analysis in found.values() for name, table in tables_of(analysis).items()}
    for analysis in found.values():
        for name, frames in analysis.rows.items():
            rows = pd.concat(frames).sort_values("image", kind="stable").reset_index(drop=True)
            given[name] = rows
    return given


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("family", ["bert", "llama", "modernbert", "gemma3"])
def test_a_text_alone_and_padded_among_longer_ones_gives_the_same_tables(family, dtype):
    model = tiny(family, dtype)
    together, alone = (tables(measured(model, text_batches(LENGTHS, sizes))) for sizes in ([4], [1, 1, 1, 1]))
    assert together.keys() == alone.keys()
    close = 1e-5 if dtype is torch.float64 else 1e-3
    for name in together:
        # deviations over texts are small differences of large numbers
        one, other = (t[name].drop(columns=[c for c in t[name] if "std" in c]) for t in (together, alone))
        pd.testing.assert_frame_equal(one, other, rtol=close, atol=close, obj=name)


def brute_force(q, k, v, scale, causal):
    """The figures of one head (N, D) in numpy, straight from the formulas."""
    q, k, v = (x.double().numpy() for x in (q, k, v))
    n, d = k.shape
    kernel = np.exp(scale * k @ k.T)
    g = kernel.sum(1)
    centring = np.eye(n) - 1 / n
    gram = centring @ (kernel / np.outer(g, g)) @ centring
    values, vectors = np.linalg.eigh(gram)
    values, vectors = values[::-1], vectors[:, ::-1][:, :d]
    theory = (vectors - vectors.mean(0)) / g[:, None]
    a, b = (x - x.mean(0) for x in (v, theory))
    recovered = centring @ (g[:, None] * v)
    image = gram @ recovered
    rho = (recovered * image).sum(0) / (recovered**2).sum(0)
    queries = q[-1:] if causal else q
    weights = np.exp(scale * queries @ k.T)
    h = ((weights @ v / weights.sum(1, keepdims=True)) ** 2).sum(1)
    phi = np.exp(scale * (queries**2).sum(1)) / weights.sum(1) ** 2
    bases = [np.linalg.qr(x)[0] for x in (v, theory)]
    return {
        "largest": values[0],
        "trace": (kernel.diagonal() / g**2).sum(),
        "linear_cka": ((a.T @ b) ** 2).sum() / np.linalg.norm(a.T @ a) / np.linalg.norm(b.T @ b),
        "principal_overlap": (np.linalg.svd(bases[0].T @ bases[1])[1] ** 2).mean(),
        "residual": np.mean(np.linalg.norm(image - rho * recovered, axis=0) / np.linalg.norm(image, axis=0)),
        "phi": phi.mean(),
        "h": h.mean(),
        "violation": (h > phi).mean(),
        "phi_median": np.median(phi),
    }


@pytest.mark.parametrize("family", ["bert", "llama", "opt", "gpt2"])  # plain; grouped keys; two scales of their own
def test_figures_are_those_of_a_brute_force_over_each_text_alone(family):
    model = tiny(family)
    given = tables(measured(model, text_batches(LENGTHS), per_head=True))
    causal = family != "bert"
    rows = {
        name: given[f"kpca_{name}_image_heads"].set_index(["image", "block", "head"])
        for name in ("spectrum", "reconstruction", "norms", "gamma", "values")
    }
    values = rows["values"][rows["values"]["values"] == "learned"]
    gamma = rows["gamma"][rows["gamma"]["vectors"] == "recovered"]
    for batch in text_batches(LENGTHS, [1] * len(LENGTHS)):
        with torch.no_grad():
            _, cache = model.run_with_cache(batch.inputs, "blocks.*.attn.hook_[qkv]")
        for block in range(2):
            for head in range(4):
                q, k, v = (cache[f"blocks.{block}.attn.hook_{x}"][0, head] for x in "qkv")
                expected = brute_force(q, k, v, model.layout.scale(block), causal)
                at = (int(batch.indices), block, head)
                found = {m: rows["spectrum"].loc[at, m] for m in ("largest", "trace")}
                found |= {m: values.loc[at, m] for m in ("linear_cka", "principal_overlap")}
                found |= {"residual": gamma.loc[at, "residual"]}
                found |= {m: rows["reconstruction"].loc[at, m] for m in ("phi", "h", "violation")}
                found |= {"phi_median": rows["norms"].loc[at, "phi_median"]}
                assert found == pytest.approx(expected, rel=1e-7), at
    heads = given["kpca_spectrum"].query("metric == 'trace'")
    means = rows["spectrum"]["trace"].groupby(["block", "head"]).mean()
    np.testing.assert_allclose(heads["mean"], means)
    assert set(heads["n"]) == {len(LENGTHS)}


@pytest.mark.parametrize("family", ["bert", "llama", "opt", "gpt2", "gemma3", "qwen3"])
def test_outputs_are_those_of_the_model_itself(family):
    """||h||^2 of the queries that see all keys is the squared length of hook_z: mask, scale and groups were right."""
    model, lengths = tiny(family), (4, 3, 4)  # within the window of Gemma
    (batch,) = text_batches(lengths)
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.attn.hook_z")
    table = tables(measured(model, [batch], ["kpca.reconstruction"]))["kpca_reconstruction"]
    for block in range(2):
        h = cache[f"blocks.{block}.attn.hook_z"].square().sum(-1)  # (B, H, N)
        assert h.shape == (3, 4, 4)
        last = [h[i, :, (n - 1) * model.layout.causal : n].mean(1) for i, n in enumerate(lengths)]
        found = table.query(f"block == {block} and metric == 'h'")["mean"]
        np.testing.assert_allclose(found, torch.stack(last).mean(0), rtol=1e-6)


def test_what_a_reader_must_know_is_said():
    for family, queries, keys in (("bert", [], []), ("gpt2", [LAST_QUERY], [LAST_VIEW])):
        found = measured(tiny(family), text_batches((9, 10)))
        for name, analysis in found.items():
            assert analysis.remarks == (queries if name in NAMES[1:3] else keys)
    assert "rotary" in measured(tiny("llama"), text_batches((9,)))["kpca.values"].remarks[0]


def test_texts_shorter_than_heads_are_wide_are_left_out_and_counted():
    found = measured(tiny("bert"), text_batches((12, 7, 3, 9, 1)))
    assert {name: analysis.images for name, analysis in found.items()} == dict(zip(NAMES, (4, 4, 4, 2, 2)))
    given = tables(found)
    assert set(given["kpca_values"]["too_short"]) == set(given["kpca_gamma"]["too_short"]) == {3}
    assert set(given["kpca_spectrum"]["too_short"]) == {1}  # one token has no axis
    assert given["kpca_values_images"]["image"].unique().tolist() == [0, 3]
    assert "3 texts with fewer than 9 tokens left out" in found["kpca.values"].summary()["linear_cka"].note
    axes = given["kpca_eigenvalues"].query("block == 0")  # N texts have N - 1 axes
    assert axes["n"].tolist() == [4, 4, 3, 3, 3, 3, 2, 2]
    assert (axes["mean"] > 0).all()
    bound = given["kpca_eigenvalue_statistics"]["bound"]
    assert set(bound) == {(12 + 7 + 3 + 9) / 4}


def test_only_short_texts_are_an_error_with_a_way_out():
    found = measured(tiny("bert"), text_batches((8, 6)))
    with pytest.raises(UnsuitableDataError, match=r"all 2 texts have fewer than 9 tokens.*kpca\.spectrum"):
        found["kpca.values"].tables()
    assert found["kpca.spectrum"].tables()


def test_a_block_looks_at_texts_that_fit_into_its_window():
    found = measured(tiny("gemma3"), text_batches((4, 12, 9)))
    given = tables(found)
    for name, n in (("kpca_spectrum", (1, 3)), ("kpca_reconstruction", (1, 3)), ("kpca_norms", (1, 3))):
        assert given[name].groupby("block")["n"].unique().map(list).tolist() == [[n[0]], [n[1]]]
    assert set(given["kpca_values"]["block"]) == {1}  # the text that fits has too few tokens for these
    assert set(given["kpca_gamma"]["n"]) == {2}
    overlap = given["kpca_values_model"].query("metric == 'principal_overlap' and values == 'learned'")["mean"]
    rows = given["kpca_values_images"].query("values == 'learned'")["principal_overlap"]
    assert float(overlap.iloc[0]) == pytest.approx(rows.mean())
    assert WINDOWS in found["kpca.spectrum"].remarks
    ranks = given["kpca_spectrum_images"].set_index("image")
    heads = measured(tiny("gemma3"), text_batches((4, 12, 9)), ["kpca.spectrum"], per_head=True)
    each = tables(heads)["kpca_spectrum_image_heads"]
    np.testing.assert_allclose(ranks["max"], each.groupby("image")["largest"].mean())


def test_the_variant_of_the_study_takes_padding_for_tokens():
    model = tiny("bert")
    (batch,) = text_batches((12, 9))
    found = measured(model, [batch], ["kpca.spectrum", "kpca.values"], variant="code", per_head=True)
    assert found["kpca.spectrum"].remarks == [PADDED]
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.0.attn.hook_k")
    gram = centred_gram(cache["blocks.0.attn.hook_k"], "code")
    largest = torch.linalg.eigvalsh(gram.matrix).abs().amax(-1) * gram.log_scale.exp()  # (B, H), padding in it
    rows = tables(found)["kpca_spectrum_image_heads"].query("block == 0")
    np.testing.assert_allclose(rows["largest"], largest.flatten(), rtol=1e-9)
    causal = measured(tiny("gpt2"), [batch], ["kpca.spectrum"], variant="code")["kpca.spectrum"]
    assert causal.remarks == [LAST_VIEW]


def test_every_second_text_and_a_random_twin():
    model = tiny("llama")
    found = measured(model, text_batches(LENGTHS, [3, 1]), NAMES, every=2, control="random")
    given = tables(found)
    assert given["kpca_values_images"]["image"].unique().tolist() == [0, 2]
    assert set(given["kpca_reconstruction"]["weights"]) == {"own", "random"}
    own, twin = (given["kpca_reconstruction"].query(f"weights == '{w}'")["mean"].to_numpy() for w in ("own", "random"))
    assert not np.allclose(own, twin)
    assert np.isfinite(twin).all()


def test_a_real_language_model_on_real_lines(shared):
    model = open_model(shared / "weights" / "stories260K")
    from vitscope.data import load_data

    data = load_data("pydoc", unit="lines", min_chars=60, first=5, context=60)
    found = measured(model, data.batches(model.preprocess, 5))
    alone = measured(model, data.batches(model.preprocess, 1))
    for name in NAMES:
        one, two = (f[name].summary() for f in (found, alone))
        for key in one:
            assert one[key].n == 5
            assert one[key].value == pytest.approx(two[key].value, rel=1e-3)
    bound = float(found["kpca.spectrum"].tables()["kpca_eigenvalue_statistics"]["bound"].iloc[0])
    assert 0 < found["kpca.spectrum"].summary()["largest_eigenvalue"].value < bound <= 60
    assert math.isfinite(found["kpca.values"].summary()["optimal_cosine"].value)
