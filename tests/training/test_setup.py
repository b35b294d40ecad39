from __future__ import annotations

import pytest
from PIL import Image

from vitscope.data.batch import Item
from vitscope.models import open_model
from vitscope.training.setup import what_is_lost


class Pictures:
    """What the remark reads of a data set."""

    name = "flowers"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def read(self, i: int, masks: bool = True) -> Item:
        return Item(Image.new(self.mode, (28, 28)), 0, i, "picture")


@pytest.mark.parametrize(("channels", "mode", "lost"), [(1, "RGB", True), (1, "L", False), (3, "RGB", False)])
def test_colours_that_the_model_does_not_take_are_said_aloud(channels, mode, lost):
    model = open_model("test_vit", "random", in_chans=channels)
    assert bool(what_is_lost(model, Pictures(mode))) == lost
