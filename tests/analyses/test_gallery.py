"""Which images are shown, and that they look as the model saw them."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from vitscope.analyses.gallery import as_picture, choose_gallery, gallery_rows
from vitscope.data.batch import Batch
from vitscope.models.preprocessing import Preprocess


@given(st.integers(1, 10_000), st.integers(0, 20))
def test_the_gallery_has_as_many_images_as_asked_for_spread_over_the_data(images, wanted):
    chosen = sorted(choose_gallery([-1] * images, wanted))
    assert len(chosen) == min(images, wanted)
    assert all(0 <= i < images for i in chosen)
    gaps = np.diff(chosen)
    assert len(gaps) == 0 or gaps.max() - gaps.min() <= 1


@given(st.permutations([digit for digit in range(10) for _ in range(5)]))
def test_the_gallery_shows_every_class_in_whatever_order_they_come(labels):
    assert sorted(labels[i] for i in choose_gallery(labels, 10)) == list(range(10))


def test_normalisation_is_undone_exactly():
    preprocess = Preprocess((3, 4, 5), mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
    pixels = np.random.default_rng(0).integers(0, 256, (4, 5, 3), dtype=np.uint8)
    image = (torch.tensor(pixels).permute(2, 0, 1) / 255 - torch.tensor(preprocess.mean).view(3, 1, 1)) / torch.tensor(
        preprocess.std
    ).view(3, 1, 1)
    assert np.array_equal(as_picture(image, preprocess).numpy(), pixels)


def test_rows_name_classes_only_where_they_are_known():
    logits = torch.tensor([[0.0, 2.0, 1.0], [3.0, 2.0, 1.0]])
    batch = Batch(torch.zeros(2, 1, 2, 2), torch.tensor([2, -1]), torch.tensor([4, 9]), ["a", "b"], outputs=logits)
    rows = gallery_rows(batch, frozenset({4, 9}), ["x", "y", "z"], head=3)
    assert rows["class_name"].tolist() == ["z", ""]
    assert rows["predicted_name"].tolist() == ["y", "x"]
    rows = gallery_rows(batch, frozenset({9}), ["x", "y", "z"], head=0)
    assert rows[["image", "prediction", "predicted_name"]].values.tolist() == [[9, -1, ""]]
    assert gallery_rows(batch, frozenset({5}), ["x", "y", "z"], head=3) is None


def test_rows_name_no_class_where_items_have_none():
    targets, outputs = torch.tensor([[0.5], [torch.nan]]), torch.zeros(2, 4, 3)  # a number; outputs at each of 4 tokens
    batch = Batch(torch.zeros(2, 1, 2, 2), targets, torch.tensor([4, 9]), ["a", "b"], outputs=outputs)
    rows = gallery_rows(batch, frozenset({4, 9}), ["x", "y", "z"], head=3, one_class=False)
    assert rows[["label", "class_name", "prediction", "predicted_name"]].values.tolist() == [[-1, "", -1, ""]] * 2
