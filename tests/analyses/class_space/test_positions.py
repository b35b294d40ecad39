from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space.positions import MEAN, at_positions, parse_positions, position_kind
from vitscope.errors import VitscopeError


def test_words_numbers_and_ranges(tools):
    layout = tools["build"](reg_tokens=2).layout  # 1 class, 2 registers, 16 image tokens
    assert parse_positions("all", layout) == [*range(19), MEAN]
    assert parse_positions("class,mean", layout) == [0, MEAN]
    assert parse_positions("register", layout) == [1, 2]
    assert parse_positions("3-5, 0", layout) == [0, 3, 4, 5]
    assert parse_positions([7, "class"], layout) == [0, 7]
    assert parse_positions(4, layout) == [4]
    for wrong, message in (("clas", "not known"), ("19", "0 to 18"), ("", "not known")):
        with pytest.raises(VitscopeError, match=message):
            parse_positions(wrong, layout)
    pooled = tools["build"](class_token=False, global_pool="avg").layout
    with pytest.raises(VitscopeError, match="names no token"):
        parse_positions("class", pooled)


def test_positions_pick_tokens_and_the_mean_of_the_image_tokens(model):
    x = torch.randn(5, 17, 3)
    picked = at_positions(x, [0, 4, MEAN], model.layout)
    torch.testing.assert_close(picked[0], x[:, 0])
    torch.testing.assert_close(picked[1], x[:, 4])
    torch.testing.assert_close(picked[2], x[:, 1:].mean(1))
    torch.testing.assert_close(at_positions(x, list(range(17)), model.layout), x.transpose(0, 1))


def test_every_position_has_a_kind_and_a_place(model):
    assert position_kind(MEAN, model.layout) == ("mean", -1, -1)
    assert position_kind(0, model.layout) == ("class", -1, -1)
    assert position_kind(1 + 4 + 2, model.layout) == ("image", 1, 2)
