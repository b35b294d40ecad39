"""Fine-tuning and evaluation of given weights."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from vitscope import open_model
from vitscope.errors import WeightsError
from vitscope.training import TrainOptions, loop, train
from vitscope.training.start import fit, start_from

Tiny = Callable[..., TrainOptions]
MODEL = {"img_size": 16, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "depth": 2, "num_heads": 2, "mlp_ratio": 2.0}


@pytest.fixture
def trained(tiny: Tiny) -> Path:
    return train(tiny("trained", epochs=8)).path


def started(options: TrainOptions, **settings: object) -> tuple[dict[str, torch.Tensor], list[str]]:
    model = start_from(options, {"num_classes": 4, **MODEL, **settings})
    return model.module.state_dict(), model.source.get("fitted", [])


def test_weights_of_the_same_shape_are_taken_as_they_are(tiny: Tiny, trained: Path) -> None:
    expected = open_model(trained).module.state_dict()
    for weights in (trained, trained / "checkpoints" / "best" / "model.safetensors"):
        state, changes = started(tiny(weights=weights))
        assert changes == []
        assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_plain_weights_beside_averaged_ones_are_taken_on_request(tiny: Tiny, tmp_path: Path) -> None:
    plain = open_model("vit_tiny_patch16_224", "random", num_classes=4, **MODEL).module.state_dict()
    torch.save({"model": plain, "model_ema": {k: v + 1 for k, v in plain.items()}}, tmp_path / "both.pth")
    for use_ema, shift, entry in ((True, 1, "model_ema"), (False, 0, "model")):
        options = tiny(weights=tmp_path / "both.pth", use_ema=use_ema)
        model = start_from(options, {"num_classes": 4, **MODEL})
        assert torch.equal(model.module.head.weight, plain["head.weight"] + shift)
        assert model.source["entry"] == entry
        assert f"({entry}) were taken" in model.notes[0]
        assert options.to_config().get("use_ema", True) is use_ema
    assert "use_ema" not in tiny().to_config()  # so that older runs go on


def test_another_size_of_picture_resizes_the_positions_and_nothing_else(tiny: Tiny, trained: Path) -> None:
    expected = open_model(trained).module.state_dict()
    state, changes = started(tiny(weights=trained), img_size=24)
    assert changes == ["position embedding resized to 6x6 patches"]
    before, after = expected["pos_embed"], state["pos_embed"]
    assert torch.equal(after[:, 0], before[:, 0])  # the class token's own
    grid = before[:, 1:].unflatten(1, (4, 4)).permute(0, 3, 1, 2)
    again = torch.nn.functional.interpolate(grid, size=(6, 6), mode="bicubic", antialias=True)
    assert torch.allclose(after[:, 1:], again.flatten(2).transpose(1, 2), atol=1e-6)
    assert all(torch.equal(state[key], expected[key]) for key in expected if key != "pos_embed")


def test_integers_are_refused_before_they_are_resampled(tiny: Tiny, tmp_path: Path) -> None:
    state = open_model("vit_tiny_patch16_224", "random", num_classes=4, **MODEL).module.state_dict()
    torch.save({**state, "pos_embed": (100 * state["pos_embed"]).to(torch.int8)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"pos_embed as torch\.int8"):
        started(tiny(weights=tmp_path / "w.pth"), img_size=24)


def test_other_classes_get_a_new_head_and_it_says_so(tiny: Tiny, trained: Path) -> None:
    expected = open_model(trained).module.state_dict()
    state, changes = started(tiny(weights=trained), num_classes=7)
    assert changes == ["new head: the weights have 4 classes, the data 7"]
    fresh = open_model("vit_tiny_patch16_224", "random", seed=0, num_classes=7, **MODEL).module.state_dict()
    assert torch.equal(state["head.weight"], fresh["head.weight"])
    assert torch.equal(state["blocks.1.mlp.fc1.weight"], expected["blocks.1.mlp.fc1.weight"])


def test_coloured_pictures_share_the_weights_of_grey_ones(tiny: Tiny, trained: Path) -> None:
    state, changes = started(tiny(weights=trained), in_chans=3)
    assert changes == ["1 input channels made 3"]
    grey = open_model(trained).module.state_dict()["patch_embed.proj.weight"]
    assert torch.allclose(state["patch_embed.proj.weight"].sum(1, keepdim=True), grey, atol=1e-6)


def test_softmax_weights_start_another_attention(tiny: Tiny, trained: Path) -> None:
    expected = open_model(trained).module.state_dict()
    state, changes = started(tiny(weights=trained, attention="rpc:layers=0,iterations=2"))
    assert changes == ["attention converted to rpc:layers=0,iterations=2"]
    assert torch.equal(state["blocks.0.attn.qkv.weight"], expected["blocks.0.attn.qkv.weight"][16:])  # keys, values
    assert torch.equal(state["blocks.1.attn.qkv.weight"], expected["blocks.1.attn.qkv.weight"])


def test_weights_of_that_attention_are_taken_as_they_are(tiny: Tiny) -> None:
    run = train(tiny("rpc", epochs=1, attention="rpc:layers=0,iterations=2"))
    state, changes = started(tiny(weights=run.path, attention="rpc:layers=0,iterations=2"))
    assert changes == []
    expected = open_model(run.path).module.state_dict()
    assert all(torch.equal(state[key], expected[key]) for key in expected)


def test_another_architecture_is_refused_with_its_differences(tiny: Tiny, trained: Path) -> None:
    with pytest.raises(WeightsError, match=r"blocks\.2"):
        started(tiny(weights=trained), depth=3)
    model = open_model("vit_tiny_patch16_224", "random", num_classes=4, **MODEL).module
    with pytest.raises(WeightsError, match="cannot be resized"):
        fit({"pos_embed": torch.zeros(1, 13, 16)}, model)


def test_fine_tuning_begins_where_the_weights_are_and_keeps_their_preprocessing(tiny: Tiny, trained: Path) -> None:
    run = train(tiny("tuned", weights=str(trained), epochs=1, lr=1e-4, warmup_epochs=0.0))
    before = open_model(trained)
    assert run.table("training")["test_accuracy"].iloc[0] >= 0.9
    assert open_model(run.path).preprocess.mean == before.preprocess.mean
    assert run.config["model"]["sha256"] == before.source["sha256"]


def test_what_was_fitted_is_in_the_report(tiny: Tiny, trained: Path) -> None:
    run = train(tiny("tuned", weights=str(trained), epochs=1, model_options={**MODEL, "img_size": 24}))
    assert any("position embedding resized to 6x6" in warning for warning in run.warnings)


def test_evaluation_only_trains_nothing(tiny: Tiny, trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop.Training, "learn", lambda *_: pytest.fail("it trained"))
    run = train(tiny("judged", weights=str(trained), evaluate=True))
    table = run.table("evaluation")
    expected = open_model(trained)
    assert table["n"].tolist() == [41]
    assert run.summary["train.test_accuracy"]["value"] == pytest.approx(100 * table["accuracy"][0])
    from vitscope.runs import Run

    assert table["accuracy"][0] == Run.open(trained).table("training")["test_accuracy"].max()
    assert expected.num_classes == 4
    assert not list((run.path / "checkpoints").glob("*"))


def test_a_head_that_learned_the_classes_in_another_order_is_put_into_that_of_the_data(
    tiny: Tiny, trained: Path
) -> None:
    learned = json.loads((trained / "model.json").read_text())
    order = [2, 0, 3, 1]
    learned["classes"] = [learned["classes"][i] for i in order]  # as if its folders had been numbered in another way
    (trained / "model.json").write_text(json.dumps(learned))
    weights = trained / "checkpoints" / "best" / "model.safetensors"
    before = open_model("vit_tiny_patch16_224", weights, **MODEL).module.state_dict()
    run = train(tiny("judged", weights=str(trained), evaluate=True))
    model = start_from(tiny(weights=str(trained)), {"num_classes": 4, **MODEL}, ["dark", "bright", "across", "down"])
    assert torch.equal(model.module.state_dict()["head.weight"][order], before["head.weight"])
    assert torch.equal(model.module.state_dict()["head.bias"][order], before["head.bias"])
    assert any("rows of the head put into the order" in warning for warning in run.warnings)


def test_weights_that_would_have_to_be_changed_cannot_be_evaluated(tiny: Tiny, trained: Path) -> None:
    with pytest.raises(WeightsError, match="position embedding"):
        train(tiny("judged", weights=str(trained), evaluate=True, model_options={**MODEL, "img_size": 24}))
