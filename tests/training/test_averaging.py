"""The average of the weights, against the recurrence written out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from vitscope import open_model
from vitscope.training import TrainOptions, train
from vitscope.training.checkpoint import BEST, LAST, load_checkpoint
from vitscope.training.setup import Average

Tiny = Callable[..., TrainOptions]


def test_it_is_the_moving_average_of_every_step(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, torch.Tensor]] = []
    real = Average.update

    def noting(self: Average, module: torch.nn.Module) -> None:
        seen.append({key: value.clone() for key, value in module.state_dict().items()})
        real(self, module)

    monkeypatch.setattr(Average, "update", noting)
    options = tiny(ema=0.9, epochs=2)
    run = train(options)
    average = open_model(options.model, "random", seed=0, num_classes=4, **options.model_options).module.state_dict()
    for weights in seen:
        average = {key: 0.9 * value + 0.1 * weights[key] for key, value in average.items()}
    assert len(seen) == 12
    saved = load_checkpoint(run.checkpoints_dir / LAST)
    for key, value in average.items():
        assert torch.allclose(saved.average[key], value, atol=1e-6), key
        assert torch.equal(saved.weights[key], seen[-1][key]), key


def test_it_is_evaluated_beside_the_weights_and_can_be_opened(tiny: Tiny) -> None:
    run = train(tiny(ema=0.9, epochs=6))
    table = run.table("training")
    assert {"ema_test_loss", "ema_test_accuracy"} <= set(table.columns)
    assert (table["ema_test_loss"] != table["test_loss"]).all()
    model = open_model(run.path, run.checkpoints_dir / BEST / "ema.safetensors")
    assert model.num_classes == 4
    plain = open_model(run.path).module.state_dict()
    assert not torch.equal(model.module.state_dict()["head.weight"], plain["head.weight"])
