from __future__ import annotations

import argparse
import hashlib
import json
import sys
import warnings
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

from vitscope.errors import NumericalError, UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models import open_model

sys.path.insert(0, str(Path(__file__).parents[1]))
from model_names import REFUSED

NAME = "test_vit"  # timm's own small ViT for tests


@pytest.fixture
def state():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return timm.create_model(NAME, num_classes=7).state_dict()


def same(model, state):
    own = model.module.state_dict()
    return own.keys() == state.keys() and all(torch.equal(own[k], state[k]) for k in own)


def test_safetensors_load_and_the_class_count_comes_from_the_weights(tmp_path, state):
    save_file(state, tmp_path / "w.safetensors")
    model = open_model(NAME, tmp_path / "w.safetensors")
    assert model.num_classes == 7
    assert same(model, state)
    assert not model.module.training


@pytest.mark.parametrize(
    "wrap",
    [
        lambda s: s,
        lambda s: {"model": s, "args": argparse.Namespace(lr=0.1), "epoch": 3},
        lambda s: {"state_dict": {f"module.{k}": v for k, v in s.items()}},
        lambda s: {"state_dict": {f"module.model._orig_mod.{k}": v for k, v in s.items()}},
        lambda s: {"model": {k: v * 0 for k, v in s.items()}, "model_ema": s},
        lambda s: {"model_ema": {"n_averaged": torch.tensor(3), **{f"module.{k}": v for k, v in s.items()}}},
    ],
    ids=["plain", "deit-namespace", "ddp", "nested-prefixes", "ema-preferred", "averaging-wrapper"],
)
def test_pth_files_of_training_programs_load(tmp_path, state, wrap):
    torch.save(wrap(state), tmp_path / "w.pth")
    assert same(open_model(NAME, tmp_path / "w.pth"), state)


def test_use_ema_false_takes_the_plain_weights(tmp_path, state):
    torch.save({"model": state, "model_ema": {k: v * 0 for k, v in state.items()}}, tmp_path / "w.pth")
    model = open_model(NAME, tmp_path / "w.pth", use_ema=False)
    assert same(model, state)
    assert model.source["entry"] == "model"


def test_a_checkpoint_with_both_says_which_weights_were_taken(tmp_path, state):
    torch.save({"model": state, "model_ema": state}, tmp_path / "both.pth")
    torch.save({"model": state}, tmp_path / "one.pth")
    module = timm.create_model(NAME, num_classes=7)
    for opened in (NAME, module):
        model = open_model(opened, tmp_path / "both.pth")
        assert model.source["entry"] == "model_ema"
        assert "averaged weights (model_ema) were taken, it also holds plain weights (model)" in model.notes[-1]
        assert "--no-use-ema" in model.notes[-1]
        plain = open_model(opened, tmp_path / "both.pth", use_ema=False)
        assert "plain weights (model) were taken" in plain.notes[-1]
        assert not any("were taken" in note for note in open_model(opened, tmp_path / "one.pth").notes)


def test_a_checkpoint_of_averaged_weights_alone_is_no_empty_one(tmp_path, state):
    torch.save({"model_ema": state}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"averaged weights only \(model_ema\): leave out --no-use-ema"):
        open_model(NAME, tmp_path / "w.pth", use_ema=False)


class Payload:
    def __init__(self, target):
        self.target = target

    def __reduce__(self):
        return (open, (str(self.target), "w"))


def test_a_checkpoint_that_tries_to_run_code_is_refused_and_does_not_run(tmp_path, state):
    torch.save({"model": state, "extra": Payload(tmp_path / "owned")}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"more than weights: \w*io\.open\. .* could run code") as refusal:
        open_model(NAME, tmp_path / "w.pth")
    assert not (tmp_path / "owned").exists()
    assert "weights_only" not in str(refusal.value)  # torch's own message advises to run it


def test_a_file_that_is_no_checkpoint_is_said_to_be_none(tmp_path):
    (tmp_path / "w.pth").write_text("<html>not found</html>")
    with pytest.raises(WeightsError, match="damaged, or not a checkpoint") as refusal:
        open_model(NAME, tmp_path / "w.pth")
    assert "weights_only" not in str(refusal.value)


def test_weights_of_another_architecture_list_missing_and_unexpected_keys(tmp_path, state):
    del state["norm.weight"]
    state["stranger"] = torch.zeros(2)
    state["cls_token"] = torch.zeros(1, 1, 3)
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(WeightsError) as error:
        open_model(NAME, tmp_path / "w.safetensors")
    assert "1 missing (norm.weight)" in str(error.value)
    assert "1 unexpected (stranger)" in str(error.value)
    assert "cls_token (1, 1, 3) instead of (1, 1, 64)" in str(error.value)


def test_nan_weights_are_named(tmp_path, state):
    state["blocks.1.mlp.fc1.weight"][0, 0] = float("nan")
    save_file(state, tmp_path / "w.safetensors")
    with pytest.raises(NumericalError, match=r"blocks\.1\.mlp\.fc1\.weight holds 1 NaN"):
        open_model(NAME, tmp_path / "w.safetensors")


@pytest.mark.parametrize("content", [b"", b"not a checkpoint", b"PK\x03\x04 cut"])
@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_broken_file_is_a_clear_error(tmp_path, content, suffix):
    (tmp_path / f"w{suffix}").write_bytes(content)
    with pytest.raises(WeightsError, match="w" + suffix.replace(".", r"\.")):
        open_model(NAME, tmp_path / f"w{suffix}")


@pytest.mark.filterwarnings("ignore:torch.quantize")
@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("int8", lambda v: (100 * v).to(torch.int8)),
        ("int64", lambda v: v.long()),
        ("bool", lambda v: v > 0),
        ("complex64", lambda v: v.to(torch.complex64)),
        ("float8_e4m3fn", lambda v: v.to(torch.float8_e4m3fn)),
        ("qint8", lambda v: torch.quantize_per_tensor(v, 0.1, 0, torch.qint8)),
        ("dense", lambda v: v.to_sparse()),
        ("dense", lambda v: v.to("meta")),
    ],
    ids=["int8", "int64", "bool", "complex", "float8", "quantised", "sparse", "without-values"],
)
def test_weights_that_are_no_real_numbers_are_refused_with_what_to_do(tmp_path, state, kind, change):
    torch.save({**state, "norm.weight": change(state["norm.weight"])}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=f"norm.weight as .*{kind}.* 1 of .*dequantised"):
        open_model(NAME, tmp_path / "w.pth")


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_precisions_are_taken(tmp_path, state, dtype):
    save_file({k: v.to(dtype) for k, v in state.items()}, tmp_path / "w.safetensors")
    assert same(open_model(NAME, tmp_path / "w.safetensors"), {k: v.to(dtype).float() for k, v in state.items()})


@pytest.mark.parametrize("shape", [(10**7, 64), (10**12, 64), (0, 64), (7,), (), (7, 64, 1)], ids=str)
def test_a_head_that_is_no_classifier_is_refused_before_a_model_is_built(tmp_path, state, shape, monkeypatch):
    monkeypatch.setattr("vitscope.models.open._build", lambda *_: pytest.fail("a model was built"))
    state["head.weight"] = torch.zeros(()).expand(shape)  # a small file that declares much
    torch.save(state, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"w.pth: head.weight of shape .* is no classifier"):
        open_model(NAME, tmp_path / "w.pth")


def test_what_has_no_name_in_a_checkpoint_is_no_weight(tmp_path, state):
    torch.save({3: torch.zeros(2), **state}, tmp_path / "w.pth")
    assert same(open_model(NAME, tmp_path / "w.pth"), state)
    torch.save({3: torch.zeros(2)}, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match="holds no tensors"):
        open_model(NAME, tmp_path / "w.pth")


@pytest.mark.parametrize("error", [TypeError, IndexError, KeyError, AttributeError])
def test_whatever_torch_stumbles_over_is_a_damaged_file(tmp_path, state, error, monkeypatch):
    def stumble(*_, **__):
        raise error("somewhere")

    torch.save(state, tmp_path / "w.pth")
    monkeypatch.setattr(torch, "load", stumble)
    with pytest.raises(WeightsError, match=r"cannot be read as a checkpoint .*somewhere"):
        open_model(NAME, tmp_path / "w.pth")


def test_an_unknown_model_suggests_near_names():
    with pytest.raises(VitscopeError, match="Did you mean vit_tiny_patch16_224"):
        open_model("vit_tiny_patch16_244", "random")
    with pytest.raises(VitscopeError, match="has no tag 'augreg_in21k_ft_in2k'"):
        open_model("vit_tiny_patch16_224.augreg_in21k_ft_in2k", "random")


@pytest.mark.parametrize("name", REFUSED)
def test_models_of_other_kinds_are_refused_by_name_and_with_a_reason(name):
    with pytest.raises(UnsupportedModelError, match=r"is not supported: .{20,}"):
        open_model(name, "random")


def test_weights_from_a_file_leave_the_global_generator(tmp_path, state):
    save_file(state, tmp_path / "w.safetensors")
    before = torch.random.get_rng_state()
    open_model(NAME, tmp_path / "w.safetensors")
    assert torch.equal(torch.random.get_rng_state(), before)


def test_random_weights_depend_on_the_seed_alone_and_leave_the_global_generator():
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    first, second = open_model(NAME, "random", seed=1), open_model(NAME, "random", seed=1)
    assert torch.equal(torch.rand(1), expected)
    assert same(first, second.module.state_dict())
    assert not same(first, open_model(NAME, "random", seed=2).module.state_dict())


def test_preprocessing_follows_the_tag_and_a_bare_name_with_disagreeing_tags_says_what_it_took():
    tagged = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", "random", depth=1)
    assert tagged.preprocess.mean == (0.5, 0.5, 0.5)
    assert tagged.preprocess.crop_pct == 0.9
    assert tagged.notes == []
    with pytest.warns(UserWarning, match="disagree on mean/std: took those of"):
        bare = open_model("vit_base_patch16_224", "random", depth=1)
    assert "augreg2_in21k_ft_in1k" in bare.notes[0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        open_model("deit_tiny_patch16_224", "random", depth=1)


def test_a_run_folder_opens_with_its_own_preprocessing_and_class_names(tmp_path, state):
    options = {"num_classes": 7}
    preprocess = {"input_size": [3, 160, 160], "mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    description = {"name": NAME, "kwargs": options, "preprocess": preprocess, "classes": list("abcdefg")}
    (tmp_path / "model.json").write_text(json.dumps(description))
    with pytest.raises(WeightsError, match="no checkpoint yet"):
        open_model(tmp_path)
    (tmp_path / "checkpoints" / "last").mkdir(parents=True)
    save_file(state, tmp_path / "checkpoints" / "last" / "model.safetensors")
    model = open_model(tmp_path)
    assert same(model, state)
    assert model.preprocess.mean == (0.1, 0.2, 0.3)
    assert model.classes == list("abcdefg")


def test_a_damaged_checkpoint_is_noticed_and_the_other_one_opened(tmp_path, state):
    preprocess = {"input_size": [3, 160, 160], "mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    description = {"name": NAME, "kwargs": {"num_classes": 7}, "preprocess": preprocess}
    (tmp_path / "model.json").write_text(json.dumps(description))
    files = [tmp_path / "checkpoints" / which / "model.safetensors" for which in ("best", "last")]
    for file in files:
        file.parent.mkdir(parents=True)
        save_file(state, file)
        digest = hashlib.sha256(file.read_bytes()).hexdigest()
        (file.parent / "checkpoint.json").write_text(json.dumps({"sha256": {file.name: digest}}))
    altered = bytearray(files[0].read_bytes())
    altered[-1] ^= 1
    files[0].write_bytes(altered)
    with pytest.warns(UserWarning, match="best.* is damaged"):
        model = open_model(tmp_path)
    assert model.source["weights"] == "last/model.safetensors"
    assert len(model.notes) == 1
    files[1].write_bytes(altered)
    with pytest.raises(WeightsError, match="damaged"):
        open_model(tmp_path)


@pytest.mark.parametrize("content", ["{", "[]", '{"name": "test_vit"}'])
def test_a_damaged_run_folder_is_a_clear_error(tmp_path, content):
    (tmp_path / "model.json").write_text(content)
    with pytest.raises(VitscopeError, match=r"model\.json is damaged"):
        open_model(tmp_path)


def test_a_device_that_is_not_there_is_a_clear_error():
    with pytest.raises(VitscopeError, match="cannot be put on device 'nonsense'"):
        open_model(NAME, "random", device="nonsense")


def test_a_module_that_the_user_built_is_used_as_it_is():
    module = timm.create_model(NAME, num_classes=3)
    model = open_model(module)
    assert model.module is module
    assert model.num_classes == 3


@pytest.mark.parametrize("place", ["", "blocks.1", "blocks.0.attn"])
def test_a_module_with_a_compiled_forward_is_refused_before_and_after_it_was_opened(place):
    module = timm.create_model(NAME)
    model, images = open_model(module), torch.zeros(1, 3, 160, 160)
    part = module.get_submodule(place)
    part.forward = torch.compile(part.forward, backend="eager")
    with pytest.raises(UnsupportedModelError, match="compiled"):
        open_model(module)
    with pytest.raises(UnsupportedModelError, match="compiled"):
        model.run_with_cache(images, "blocks.1.hook_resid_post")


def test_a_forward_that_the_compiler_must_leave_alone_is_no_compiled_one():
    module = timm.create_model(NAME)
    module.blocks[1].forward = torch.compiler.disable(module.blocks[1].forward)
    _, cache = open_model(module).run_with_cache(torch.zeros(1, 3, 160, 160), "blocks.*.hook_resid_post")
    assert "blocks.1.hook_resid_post" in cache


def test_a_folder_that_is_no_run_is_said_to_be_none(tmp_path):
    with pytest.raises(VitscopeError, match="no run folder"):
        open_model(tmp_path)


def test_real_weights_open_and_recognise_1000_classes(shared):
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", shared / "weights/vit_tiny_patch16_224.safetensors")
    assert model.num_classes == 1000
    assert str(model.layout).startswith("12 blocks x 3 heads of 64, width 192; 1 class + 0 register + 14x14")


def test_a_notebook_shows_what_a_model_is():
    model = open_model("vit_tiny_patch16_224", "random", attention="rpc:layers=0", img_size=28, patch_size=7, depth=2)
    model.name = "<b>mine</b>"
    html = model._repr_html_()
    assert "&lt;b&gt;mine&lt;/b&gt;" in html
    assert f"{sum(p.numel() for p in model.module.parameters()):,}" in html
    assert "2 of 3 heads, 64 dimensions each" in html
    assert "28 x 28, in colour" in html
    assert "rpc in block 0" in html
