"""Eight bits with a scale per row are off by half a level; what is packed comes out again."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitscope.explorer.transfer import pack, quantise, unpack


@pytest.mark.parametrize("signed", [False, True])
def test_a_level_is_off_by_half_a_level_at_most(signed):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(3, 2, 50, 50, generator=generator).mul(3).softmax(-1)
    weights = weights - 0.01 if signed else weights
    levels, scale = quantise(weights, signed)
    assert levels.dtype == (torch.int8 if signed else torch.uint8)
    back = levels.double() * scale.double()[..., None]
    assert ((back - weights).abs() <= 0.5001 * scale[..., None]).all()
    assert torch.allclose(
        scale * (127 if signed else 255), weights.abs().amax(-1)
    )  # the row's largest weight is a level


def test_a_row_of_zeros_stays_one():
    levels, scale = quantise(torch.zeros(1, 4))
    assert levels.tolist() == [[0, 0, 0, 0]]
    assert bool(scale.isfinite().all())


def test_what_is_packed_comes_out_again():
    arrays = {
        "a": torch.arange(7, dtype=torch.uint8),
        "b": torch.randn(2, 3, dtype=torch.float64),
        "c": torch.tensor([[1, -2]]),
        "empty": torch.empty(0, 4),
    }
    head, found = unpack(pack({"name": "“7”", "n": 3}, arrays))
    assert head == {"name": "“7”", "n": 3}
    assert [(k, v.dtype.str.lstrip("<|"), v.shape) for k, v in found.items()] == [
        ("a", "u1", (7,)), ("b", "f4", (2, 3)), ("c", "i4", (1, 2)), ("empty", "f4", (0, 4)),
    ]  # fmt: skip
    for name, array in arrays.items():
        assert np.allclose(found[name], array.numpy(), rtol=1e-6)


def test_typed_arrays_begin_where_a_browser_can_read_them():
    """A Float32Array must begin at a multiple of four bytes."""
    content = pack({"odd": "x" * 3}, {"a": torch.zeros(3, dtype=torch.uint8), "b": torch.zeros(5)})
    length = int.from_bytes(content[4:8], "little")
    assert (8 + length) % 8 == 0
    assert len(content) % 8 == 0
