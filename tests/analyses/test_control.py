"""The control belongs to the engine: any analysis can be shown the random twin, and knows nothing of it."""

from __future__ import annotations

import pandas as pd
import pytest
import torch
from torch import Tensor

import vitscope
from vitscope.analyses import Analysis, measure, register_analysis, tables_of, zeros
from vitscope.analyses.control import shared_twin
from vitscope.errors import VitscopeError

SMALL = {"depth": 2, "embed_dim": 16, "num_heads": 2, "mlp_dim": 16, "num_classes": 10}


@pytest.fixture
def model():
    return vitscope.open_model("small", "random", seed=3, **SMALL)


class Length(Analysis):
    """The mean length of the class token in the last block: as a user would write it."""

    def needs(self, model):
        return ["blocks.1.hook_resid_post"]

    def start(self, model):
        self.sums = {"length": zeros(1), "n": zeros(1)}

    def update(self, block, points, batch):
        (x,) = points.values()
        self.add("length", x[:, 0].norm(dim=-1).double().sum()[None])
        self.add("n", torch.tensor([len(x)]))

    def end_batch(self, batch):
        self.emit("lengths", pd.DataFrame({"image": batch.indices, "n": len(batch)}))

    def tables(self):
        return {"length": pd.DataFrame({"length": [float(self.sums["length"] / self.sums["n"])]})}


def by_hand(model, data) -> float:
    images = torch.cat([batch.images for batch in data.batches(model.preprocess)])
    with torch.no_grad():
        _, cache = model.run_with_cache(images, "blocks.1.hook_resid_post")
    (x,) = cache.values()
    assert isinstance(x, Tensor)
    return float(x[:, 0].norm(dim=-1).double().mean())


def test_an_analysis_of_ones_own_has_a_control(model, tmp_path):
    register_analysis("length")(Length)
    data = vitscope.load_data("mnist5k", images=20)
    run = vitscope.analyze(model, data, ["length", "accuracy"], tmp_path / "run", control="random", batch_size=8)
    for table, whose in (("length", model), ("length_control", shared_twin(model))):
        assert run.table(table)["length"].item() == pytest.approx(by_hand(whose, data), rel=1e-6)
    assert len(run.table("accuracy_control")) == len(run.table("accuracy"))
    assert len(run.table("lengths")) == 20  # rows per image are the model's own
    assert run.config["control"] == "random"
    plain = vitscope.analyze(model, data, ["length"], tmp_path / "plain", report=False)
    pd.testing.assert_frame_equal(plain.table("length"), run.table("length"))
    assert plain.table("length_control") is None
    assert "control" not in plain.config


def test_a_run_with_a_control_is_done_again(tmp_path):
    model, data = vitscope.open_model("small", "random", **SMALL), vitscope.load_data("mnist5k", images=10)
    run = vitscope.analyze(model, data, ["accuracy"], tmp_path / "run", control="random", report=False)
    again = vitscope.rerun(run, progress=False, report=False)
    pd.testing.assert_frame_equal(again.table("accuracy_control"), run.table("accuracy_control"))


def test_the_twin_survives_a_stop_and_a_merge(model, tmp_path):
    register_analysis("length")(Length)
    batches = list(vitscope.load_data("mnist5k", images=24).batches(model.preprocess, 8))
    whole, first, second = Length(), Length(), Length()
    for analysis, part in ((whole, batches), (first, batches[:1]), (second, batches[1:])):
        analysis.control = "random"
        measure(model, part, [analysis])
    first.merge(second)
    for name, table in tables_of(whole).items():
        pd.testing.assert_frame_equal(tables_of(first)[name], table)


def test_one_forward_pass_of_the_twin_serves_all_and_none_is_made_where_nothing_is_looked_at(model):
    from vitscope.analyses import create_analysis

    batches = list(vitscope.load_data("mnist5k", images=24).batches(model.preprocess, 8))
    calls = []
    shared_twin(model).module.register_forward_hook(lambda *_: calls.append(1))
    names = ("kpca.gamma", "kpca.reconstruction")
    measure(model, batches, [create_analysis(name, every=20, control="random") for name in names])
    assert len(calls) == 2  # images 0 and 20 lie in the first and the third batch


def test_what_is_no_control_is_refused(model):
    with pytest.raises(VitscopeError, match="control='zeros'"):
        vitscope.analyze(model, vitscope.load_data("mnist5k", images=5), ["accuracy"], control="zeros")
