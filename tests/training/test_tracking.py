from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from vitscope.errors import VitscopeError
from vitscope.training import TrainOptions, tracking, train

Tiny = Callable[..., TrainOptions]


def test_tensorboard_gets_the_numbers_of_the_table(tiny: Tiny) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = train(tiny(track=("tensorboard",), track_project="curves", epochs=2))
    events = EventAccumulator(str(next((run.path / "tracking").rglob("events.*")).parent))
    events.Reload()
    logged = [(event.step, event.value) for event in events.Scalars("test_loss")]
    table = run.table("training")
    assert [step for step, _ in logged] == [1, 2]
    assert [value for _, value in logged] == pytest.approx(table["test_loss"].tolist(), rel=1e-6)


def test_wandb_works_offline_without_a_key(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.delenv("WANDB_API_KEY", raising=False)
    run = train(tiny(track=("wandb",), track_offline=True, track_name="named", epochs=1))
    assert list(run.path.glob("wandb/offline-run-*"))
    identity = (run.path / "tracking" / "wandb_id").read_text()  # by which a resumed training goes on in the same run
    assert list(run.path.glob(f"wandb/offline-run-*-{identity}"))
    assert run.warnings == []


def test_a_tracker_that_fails_later_costs_nothing(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("tensorboard")
    from accelerate.tracking import TensorBoardTracker

    def broken(self: object, *args: object, **kwargs: object) -> None:
        raise ConnectionError("the server is gone")

    monkeypatch.setattr(TensorBoardTracker, "log", broken)
    run = train(tiny(track=("tensorboard",), epochs=2))
    assert run.status == "finished"
    assert len(run.table("training")) == 2
    assert any("the server is gone" in warning for warning in run.warnings)


def test_the_tracker_may_change_when_a_run_is_resumed(tiny: Tiny) -> None:
    train(tiny(epochs=1))
    assert train(tiny(epochs=1, track_project="other")).status == "finished"


def test_an_unknown_or_missing_tracker_is_an_error_before_anything_is_written(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(VitscopeError, match="Did you mean wandb"):
        train(tiny(track=("wandbb",)))
    monkeypatch.setattr("accelerate.tracking.get_available_trackers", list)
    with pytest.raises(VitscopeError, match=r"pip install 'vitscope\[track\]'"):
        tracking.check_trackers(("wandb",))
    assert not Path(tiny().out).exists()
