"""Wrappers' prefixes: taken off where every name has them, said aloud, and never a reason to load in part."""

from __future__ import annotations

import pytest
import timm
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from vitscope.errors import WeightsError
from vitscope.models import open_model
from vitscope.models.prefixes import PREFIXES, under_names_of, unwrap
from vitscope.models.weights import load_into, read_weights

SMALL = {"img_size": 32, "embed_dim": 24, "num_heads": 3, "depth": 2, "num_classes": 5}
NAMES = st.sampled_from(
    [
        "blocks.0.attn.qkv.weight",
        "head.bias",
        "cls_token",
        "model_scale",
        "modules.weight",
        "backbones.0.weight",
        "norm.weight",
    ]
)
STACKS = st.lists(st.sampled_from(PREFIXES), max_size=4)


def weights(names):
    return {name: torch.full((2,), float(number)) for number, name in enumerate(sorted(names))}


@given(names=st.sets(NAMES, min_size=1), stack=STACKS)
def test_any_nesting_of_wrappers_comes_off_and_goes_back_on(names, stack):
    plain, prefix = weights(names), "".join(stack)
    found = unwrap({prefix + name: value for name, value in plain.items()})
    assert found.state == plain
    assert found.prefix == prefix
    assert len(found.remarks("w.pth")) == bool(stack)
    assert under_names_of([prefix + name for name in plain], plain) == {prefix + k: v for k, v in plain.items()}


@given(names=st.sets(NAMES, min_size=2), stack=STACKS.filter(bool), data=st.data())
def test_a_prefix_that_one_name_lacks_stays(names, stack, data):
    plain, prefix = weights(names), "".join(stack)
    bare = data.draw(st.sampled_from(sorted(plain)))
    mixed = {(name if name == bare else prefix + name): value for name, value in plain.items()}
    assert unwrap(mixed).state == mixed


@given(names=st.sets(NAMES, min_size=1), stack=STACKS.filter(bool))
@settings(max_examples=20)
def test_a_counter_of_the_wrapper_is_left_out_and_named(names, stack):
    plain = weights(names)
    state = {"".join(stack) + name: value for name, value in plain.items()}
    found = unwrap({**state, "n_averaged": torch.tensor(7)})
    assert found.state == plain
    assert "n_averaged" in found.remarks("w.pth")[0]


def test_the_cifar_model_of_the_class_embedding_study_opens_strictly(tmp_path):
    """A plain state dict whose names all begin with `model.`."""
    module = timm.create_model("vit_base_patch16_224", **SMALL)
    torch.save({f"model.{name}": value for name, value in module.state_dict().items()}, tmp_path / "cifar.pth")
    options = {name: value for name, value in SMALL.items() if name != "num_classes"}
    model = open_model("vit_base_patch16_224.augreg_in21k", tmp_path / "cifar.pth", **options)
    assert model.num_classes == 5
    assert "all names begin with 'model.'" in " ".join(model.notes)
    picture = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        assert torch.equal(model(picture), module.eval()(picture))


def test_a_backbone_beside_a_head_of_its_own_is_refused_with_the_reason(tmp_path):
    state = timm.create_model("vit_base_patch16_224", **SMALL).state_dict()
    mixed = {(k if k.startswith("head") else f"backbone.{k}"): v for k, v in state.items()}
    torch.save(mixed, tmp_path / "w.pth")
    with pytest.raises(WeightsError, match=r"names would fit without 'backbone\.'"):
        open_model("vit_base_patch16_224.augreg_in21k", tmp_path / "w.pth", **{**SMALL})


def test_a_model_whose_own_names_begin_with_a_prefix_gets_its_weights(tmp_path):
    class Holder(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(2, 3)

    source, target = Holder(), Holder()
    torch.save(source.state_dict(), tmp_path / "w.pth")
    load_into(target, read_weights(tmp_path / "w.pth").state, "w.pth")
    assert torch.equal(target.model.weight, source.model.weight)
