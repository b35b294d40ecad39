from __future__ import annotations

from collections.abc import Callable

import pytest

from vitscope import analyze, load_data, open_model
from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions, train
from vitscope.training.checkpoint import LAST
from vitscope.training.setup import probe_data

Tiny = Callable[..., TrainOptions]


def test_probes_see_the_untrained_the_finished_and_every_nth_model(tiny: Tiny) -> None:
    run = train(tiny(epochs=5, probe=("accuracy", "attention"), probe_every=2, probe_images=20))
    for name in ("probe_accuracy", "probe_attention"):
        table = run.table(name)
        assert list(table.columns[:2]) == ["epoch", "split"]
        assert table["epoch"].unique().tolist() == [0, 2, 4, 5]
        assert table["split"].unique().tolist() == ["train", "test"]


def test_probes_take_options(tiny: Tiny) -> None:
    settings = {"kpca.reconstruction.variant": "code"}
    run = train(tiny(epochs=1, probe=("kpca.reconstruction",), probe_set=settings, probe_images=20))
    assert run.table("probe_kpca_reconstruction_logged")["epoch"].unique().tolist() == [0, 1]
    with pytest.raises(VitscopeError, match="no option 'varient'"):
        train(tiny("other", probe=("kpca.reconstruction",), probe_set={"kpca.reconstruction.varient": "code"}))
    with pytest.raises(VitscopeError, match="without a probe"):
        train(tiny("other", probe_set=settings))


def test_a_probe_finds_what_analyze_finds(tiny: Tiny) -> None:
    options = tiny(epochs=2, probe=("accuracy", "attention"), probe_images=1000, probe_splits=("test",))
    run = train(options)
    model = open_model(run.path, run.checkpoints_dir / LAST / "model.safetensors")
    oracle = analyze(
        model, load_data("texture_data:textures", "test"), ["accuracy", "attention"], run.path.parent / "analysis",
        report=False, progress=False,
    )  # fmt: skip
    for name in ("accuracy", "attention"):
        probe, full = run.table(f"probe_{name}"), oracle.table(name)
        last = probe[probe["epoch"] == 2].drop(columns=["epoch", "split"]).reset_index(drop=True)
        numbers, expected = (t.select_dtypes("number").to_numpy() for t in (last, full))
        assert numbers == pytest.approx(expected, rel=1e-6, abs=1e-8)  # batches of another size: other rounding


def test_probes_do_not_change_what_is_learned(tiny: Tiny) -> None:
    plain, probed = train(tiny("plain")), train(tiny("probed", probe=("attention",), probe_images=20))
    assert plain.table("training").equals(probed.table("training"))
    weights = [(run.checkpoints_dir / LAST / "model.safetensors").read_bytes() for run in (plain, probed)]
    assert weights[0] == weights[1]


def test_probe_images_are_the_same_every_time_and_spread_over_the_classes(tiny: Tiny) -> None:
    first, second = (probe_data(tiny(probe_images=12), "train") for _ in range(2))
    assert first.paths == second.paths
    assert sorted(first.labels) == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
