"""The class of a patch and its place, against loops over pixels."""

from __future__ import annotations

from collections import Counter

import pytest
import torch

from vitscope.analyses.patches.truth import patch_truth
from vitscope.errors import DataError


def loops(labels, size, patch):
    """(classes, border) of one label map, pixel by pixel."""
    rows, columns = (-(-s // p) for s, p in zip(size, patch))
    found = [[Counter() for _ in range(columns)] for _ in range(rows)]
    height, width = len(labels), len(labels[0])
    for y in range(height):
        for x in range(width):
            if labels[y][x] >= 0:
                row, column = int((y + 0.5) * size[0] / height / patch[0]), int((x + 0.5) * size[1] / width / patch[1])
                found[row][column][labels[y][x]] += 1
    classes = [[min(c, key=lambda k: (-c[k], k)) if c else -1 for c in row] for row in found]
    border = []
    for r in range(rows):
        for c in range(columns):
            beside = [(r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)]
            near = [classes[i][j] for i, j in beside if 0 <= i < rows and 0 <= j < columns]
            own = classes[r][c]
            border.append(len(found[r][c]) > 1 or any(own >= 0 and n >= 0 and n != own for n in near))
    return [own for row in classes for own in row], border


@pytest.mark.parametrize(
    ("maps", "size", "patch"),
    [
        ((24, 24), (24, 24), (8, 8)),
        ((20, 33), (20, 33), (8, 8)),
        ((50, 70), (20, 28), (4, 7)),
        ((10, 10), (20, 20), (5, 5)),
    ],
)
def test_it_is_what_a_loop_over_pixels_says(maps, size, patch):
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(-1, 4, (3, -(-maps[0] // 6), -(-maps[1] // 6)), generator=generator)
    labels = coarse.repeat_interleave(6, 1).repeat_interleave(6, 2)[:, : maps[0], : maps[1]].contiguous()
    labels[1, :4] = -1
    truth = patch_truth(labels, size, patch, 4)
    for i, map_ in enumerate(labels.tolist()):
        classes, border = loops(map_, size, patch)
        assert truth.classes[i].tolist() == classes
        assert truth.border[i].tolist() == border


def test_ignored_pixels_have_no_say_and_ties_go_to_the_smaller_class():
    labels = torch.full((1, 4, 8), -1)
    labels[0, 0, :4] = 3  # 4 of 16 pixels, the others are ignored
    labels[0, :, 4:6], labels[0, :, 6:] = 2, 1  # half and half
    truth = patch_truth(labels, (4, 8), (4, 4), 5)
    assert truth.classes.tolist() == [[3, 1]]
    assert truth.border.tolist() == [[True, True]]
    nothing = patch_truth(torch.full((1, 4, 8), -1), (4, 8), (4, 4), 5)
    assert nothing.classes.tolist() == [[-1, -1]]
    assert not nothing.border.any()


def test_a_class_that_the_model_does_not_have_is_an_error():
    with pytest.raises(DataError, match="class number 7"):
        patch_truth(torch.full((1, 4, 4), 7), (4, 4), (2, 2), 5)


def test_a_picture_that_is_filled_up_to_a_window_has_patches_without_a_class():
    labels = torch.arange(4).view(1, 2, 2).repeat_interleave(4, 1).repeat_interleave(4, 2)  # (1, 8, 8)
    plain, filled = (patch_truth(labels, (8, 8), (4, 4), 4, grid) for grid in (None, (3, 4)))
    inside = filled.classes.view(3, 4)[:2, :2]
    assert torch.equal(inside.flatten(), plain.classes[0])
    assert int(filled.known.sum()) == 4
    assert not filled.border.view(3, 4)[2:].any()
