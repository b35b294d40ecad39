"""From names and options to modules: what timm answers in its own way is an error that says what was asked for."""

from __future__ import annotations

import json
import pickle

import pytest
import timm
import torch

from vitscope.errors import VitscopeError
from vitscope.models import open_model
from vitscope.models.creation import create, option_names, sketch

NAME = "test_vit"
IMPOSSIBLE = {
    "no blocks": ({"depth": 0}, "no blocks"),
    "fewer blocks than none": ({"depth": -1}, ""),
    "heads that do not divide the width": ({"num_heads": 5}, "AssertionError"),
    "no heads": ({"num_heads": 0}, "ZeroDivisionError"),
    "negative heads": ({"num_heads": -1}, ""),
    "no width": ({"embed_dim": 0}, ""),
    "a patch larger than the picture": ({"img_size": 8, "patch_size": 16}, "larger than the picture"),
    "no patch": ({"patch_size": 0}, ""),
    "a word for a number": ({"depth": "two"}, ""),
    "a part of a block": ({"depth": 1.5}, ""),
    "three sides of a picture": ({"img_size": [32, 32, 32]}, ""),
    "negative channels": ({"in_chans": -3}, ""),
    "a norm that does not exist": ({"norm_layer": "no_such_norm"}, ""),
    "pooling that does not exist": ({"global_pool": "no_such_pool"}, ""),
    "an option that does not exist": ({"num_hats": 3}, "num_hats"),
    "more memory than there is": ({"embed_dim": 960_000}, r"would take [\d,]+ GB or more, and this machine has"),
    "pictures larger than memory": ({"img_size": 400_000, "patch_size": 8_000}, "GB"),
    "a head larger than memory": ({"num_classes": 10**12}, "no model is that large"),
    "blocks without end": ({"depth": 10**9}, "no model is that large"),
    "a mapping": ({"norm_layer": {"name": "layernorm"}}, "expected a number, a word or a list"),
    "nan": ({"mlp_ratio": float("nan")}, "finite"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_a_model_that_cannot_be_is_refused_with_its_name_and_options(case):
    options, reason = IMPOSSIBLE[case]
    with pytest.raises(VitscopeError, match=f"(?s){next(iter(options))}.*{reason}"):
        open_model(NAME, "random", **options)


def test_too_many_blocks_are_noticed_while_the_model_is_being_built(monkeypatch):
    monkeypatch.setattr("vitscope.models.creation.MOST_TENSORS", 50)
    with pytest.raises(VitscopeError, match="test_vit with depth=900 would have more than 50 weight tensors"):
        create(NAME, depth=900)
    create(NAME)  # the watch is over


def test_the_weights_do_not_depend_on_the_rehearsal():
    torch.manual_seed(3)
    mine = create(NAME, depth=1)
    torch.manual_seed(3)
    theirs = timm.create_model(NAME, depth=1)
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value)


def test_the_options_of_a_subclass_are_those_of_its_bases_too():
    known = option_names(name := "deit_tiny_distilled_patch16_224", sketch(name))
    assert {"depth", "num_heads", "weight_init"} <= set(known)
    assert {"mlp_dim", "dropout", "drop_path_rate"} <= set(option_names("small", sketch("small")))


@pytest.fixture
def closed(monkeypatch):
    """timm refuses to build anything: whoever gets that far has failed."""

    def opened(*words, **options):
        raise AssertionError(f"timm was asked for {words} {options}")

    monkeypatch.setattr(timm, "create_model", opened)


OPTIONS_OF_FILES = ["checkpoint_path", "cache_dir", "pretrained", "pretrained_cfg", "pretrained_cfg_overlay"]


@pytest.mark.parametrize("option", OPTIONS_OF_FILES)
@pytest.mark.usefixtures("closed")
def test_options_that_name_a_file_are_refused_with_what_to_type_instead(option):
    with pytest.raises(VitscopeError, match=f"{option} is no option of test_vit: .*--weights FILE"):
        open_model(NAME, "random", **{option: "somewhere"})
    with pytest.raises(VitscopeError, match=f"{option} is no option"):
        open_model(NAME, **{option: "somewhere"})


@pytest.mark.parametrize("option", ["features_only", "scriptable", "exportable", "no_jit"])
@pytest.mark.usefixtures("closed")
def test_options_that_give_no_model_are_refused(option):
    with pytest.raises(VitscopeError, match=f"{option} is no option of test_vit"):
        open_model(NAME, "random", **{option: True})


class Payload:
    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return open, (str(self.file), "w")


def run_folder(folder, **changes):
    """A folder as someone else may have made it."""
    preprocess = {"input_size": [3, 160, 160], "mean": [0.1, 0.2, 0.3], "std": [1.0, 1.0, 1.0]}
    (folder / "model.json").write_text(json.dumps({"name": NAME, "kwargs": {}, "preprocess": preprocess, **changes}))
    weights = folder / "checkpoints" / "best" / "model.safetensors"
    weights.parent.mkdir(parents=True, exist_ok=True)
    from safetensors.torch import save_file

    save_file({"a": torch.zeros(1)}, weights)
    return folder


@pytest.mark.parametrize("option", OPTIONS_OF_FILES)
@pytest.mark.usefixtures("closed")
def test_a_folder_cannot_have_a_file_read(tmp_path, option):
    pickled, executed = tmp_path / "w.pth", tmp_path / "executed"
    pickled.write_bytes(pickle.dumps(Payload(executed)))
    with pytest.raises(VitscopeError, match=f"{option} is no option"):
        open_model(run_folder(tmp_path, kwargs={option: str(pickled)}))
    assert not executed.exists()


@pytest.mark.parametrize(
    "name", ["hf-hub:timm/test_vit", "local-dir:.", "hf_hub:a/b", "timm/test_vit", "", "../x", 3, None]
)
@pytest.mark.usefixtures("closed")
def test_a_folder_names_an_architecture_and_nothing_else(tmp_path, name):
    with pytest.raises(VitscopeError, match=r"no model|damaged"):
        open_model(run_folder(tmp_path, name=name))
    with pytest.raises(VitscopeError, match="no model"):
        create(str(name))


@pytest.mark.parametrize(
    "changes",
    [
        {"preprocess": 3},
        {"preprocess": {"input_size": "large", "mean": [0.0], "std": [1.0]}},
        {"preprocess": {"input_size": [3, 32], "mean": [0.0], "std": [1.0]}},
        {"preprocess": {"input_size": [3, 32, 32], "mean": ["a"], "std": [1.0]}},
        {"preprocess": {"input_size": [3, 32, 32], "mean": [0.0], "std": [1.0], "colour": 3}},
        {"kwargs": [1]},
        {"kwargs": None},
        {"attention": 3},
        {"classes": "many"},
        {"classes": [1, 2]},
    ],
    ids=str,
)
def test_a_description_of_another_shape_is_damaged(tmp_path, changes):
    with pytest.raises(VitscopeError, match=r"model\.json is damaged, or not a model's description"):
        open_model(run_folder(tmp_path, **changes))


@pytest.mark.parametrize("text", ["[1, 2]", "3", "{", "[" * 100_000, '{"name": "test_vit"}', ""])
def test_a_description_that_is_none_is_damaged(tmp_path, text):
    run_folder(tmp_path)
    (tmp_path / "model.json").write_text(text)
    with pytest.raises(VitscopeError, match=r"model\.json is damaged, or not a model's description"):
        open_model(tmp_path)


@pytest.mark.parametrize("name", ["v" * 300, "a/" * 3000, "vit\0tiny"])
def test_a_name_that_no_file_can_have_is_no_model(name):
    with pytest.raises(VitscopeError, match="There is no model"):
        open_model(name)
    with pytest.raises(VitscopeError, match="No weights at"):
        open_model(NAME, name)
