"""Rows of models of one's own."""

from __future__ import annotations

import pytest
from timm.models.vision_transformer import Block
from torch import nn

import vitscope
from vitscope.architectures import Family, Layout, register_family
from vitscope.architectures.families import MODELS
from vitscope.errors import UnsupportedModelError


class Walker(nn.Module):
    """It does not say `num_classes`."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.layers = nn.Linear(1, 16), nn.ModuleList([Block(16, 2)])
        self.last, self.head = nn.LayerNorm(16), nn.Linear(16, 3)


@pytest.fixture
def register():
    def row(**parts: str) -> None:
        layout = Layout.of_sequence(8, blocks=1, heads=2, head_dim=8, width=16)
        register_family(Walker, Family("walker", embedding="embed", layout=lambda module: layout, **parts))

    yield row
    MODELS.pop(f"{__name__}.Walker")


def test_classes_are_counted_by_the_head_where_the_model_does_not_say(register):
    register(blocks="layers", norm="last")
    model = vitscope.open_model(Walker())
    assert (model.num_classes, model.why_no_class_space()) == (3, None)


def test_a_model_without_a_head_has_no_classes(register):
    register(blocks="layers", norm="last", head="")
    model = vitscope.open_model(Walker())
    assert model.num_classes == 0
    assert "no classes" in model.why_no_class_space()


def test_a_part_that_is_not_there_is_named_with_those_that_are(register):
    register(blocks="layers")
    with pytest.raises(UnsupportedModelError, match=r"no module 'norm', its norm .* embed, layers, last, head"):
        vitscope.open_model(Walker())
