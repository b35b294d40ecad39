from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.metrics import confusion_matrix
from torchmetrics.classification import MulticlassJaccardIndex

from vitscope.errors import UnsupportedModelError
from vitscope.tasks import segmentation
from vitscope.tasks.segmentation import (
    Segmentation,
    answered,
    bands,
    class_accuracy,
    class_iou,
    confusions,
    mean_iou,
    strongest,
)

CLASSES = 7


def maps(seed: int = 0, shape: tuple[int, ...] = (3, 20, 30), absent: int | None = None) -> torch.Tensor:
    """Label maps of blobs, some pixels of which are ignored."""
    generator = torch.Generator().manual_seed(seed)
    coarse = torch.randint(0, CLASSES, (shape[0], 1, 4, 5), generator=generator).float()
    found = F.interpolate(coarse, shape[1:], mode="nearest")[:, 0].long()
    found[torch.rand(shape, generator=generator) < 0.1] = -1
    return found if absent is None else found.where(found != absent, -1)


def logits(seed: int, truth: torch.Tensor) -> torch.Tensor:
    """Answers that are often right, (B, C, H, W)."""
    noise = torch.randn(len(truth), CLASSES, *truth.shape[1:], generator=torch.Generator().manual_seed(seed))
    return noise + 1.5 * F.one_hot(truth.clamp(min=0), CLASSES).movedim(-1, 1)


def test_confusions_are_those_of_scikit_learn_image_by_image():
    truth = maps()
    said = logits(1, truth).argmax(1)
    found = confusions(said, truth, CLASSES)
    for i in range(len(truth)):
        known = truth[i] >= 0
        expected = confusion_matrix(truth[i][known], said[i][known], labels=range(CLASSES))
        assert np.array_equal(found[i].numpy(), expected)


@pytest.mark.parametrize("absent", [None, 3])
def test_mean_iou_is_that_of_torchmetrics_over_the_whole_set(absent: int | None):
    """Also where a class is not there; torchmetrics leaves out a class that is neither there nor answered, as we do."""
    oracle = MulticlassJaccardIndex(CLASSES, ignore_index=-1)
    each = MulticlassJaccardIndex(CLASSES, ignore_index=-1, average=None)
    task, sums = Segmentation(), torch.zeros(3 + CLASSES**2, dtype=torch.float64)
    for seed in range(3):
        truth = maps(seed, absent=absent)
        told = logits(seed + 10, truth)
        if absent is not None:
            told[:, absent] = -100.0
        sums += torch.tensor(task.tally(told, truth), dtype=torch.float64)
        oracle.update(told.argmax(1), truth)
        each.update(told.argmax(1), truth)
    found = task.figures(*sums.tolist())
    assert found["mean_iou"] == pytest.approx(float(oracle.compute()), abs=1e-6)
    own = class_iou(sums[3:].view(CLASSES, CLASSES))
    assert own.isnan().nonzero().flatten().tolist() == ([] if absent is None else [absent])
    torch.testing.assert_close(own.nan_to_num(0).float(), each.compute(), atol=1e-6, rtol=0)


def test_figures_follow_their_definitions():
    matrix = torch.tensor([[6, 2, 0], [1, 3, 0], [0, 0, 0]])
    assert class_iou(matrix).tolist()[:2] == [6 / 9, 3 / 6]
    assert class_accuracy(matrix).tolist()[:2] == [6 / 8, 3 / 4]
    found = Segmentation().figures(24.0, 9.0, 12.0, *matrix.flatten().tolist())
    assert found == {"loss": 2.0, "mean_iou": (6 / 9 + 3 / 6) / 2, "mean_accuracy": 0.75, "accuracy": 0.75}
    answered_only = torch.tensor([[4, 1], [0, 0]])  # class 1 is not there, but answered: its IoU is 0, and it counts
    assert mean_iou(answered_only) == pytest.approx((4 / 5 + 0) / 2)


def test_uniform_random_maps_have_an_iou_of_one_by_2c_minus_1():
    generator = torch.Generator().manual_seed(0)
    truth, said = torch.randint(0, CLASSES, (2, 8, 400, 400), generator=generator)
    assert mean_iou(confusions(said, truth, CLASSES).sum(0)) == pytest.approx(1 / (2 * CLASSES - 1), rel=0.01)


def test_what_is_learned_from_is_what_is_written_down():
    task, truth = Segmentation(), maps()
    told = logits(2, truth)
    known = truth >= 0
    expected = F.cross_entropy(told.movedim(1, -1)[known], truth[known], reduction="sum")
    torch.testing.assert_close(task.loss(told, truth), expected)
    torch.testing.assert_close(task.item_loss(told, truth).sum(), expected)
    loss, right, counted, *more = task.tally(told, truth)
    assert (loss, right, counted) == (
        pytest.approx(float(expected), rel=1e-6),
        int(task.right(told, truth).sum()),
        int(known.sum()),
    )
    assert more == task.more(told, truth).tolist()
    assert right == ((told.argmax(1) == truth) & known).sum()
    assert not task.fooled(told, truth).any()


@pytest.mark.parametrize("shape", [(2, 7, 5, 6), (3, 300, 4), (2, 256, 3, 1), (1, 1, 2, 2), (2, 9)])
def test_the_answer_is_the_first_of_the_largest_logits(shape: tuple[int, ...]):
    told = torch.randn(shape, generator=torch.Generator().manual_seed(0)).mul(2).round()  # many are equal
    assert np.array_equal(strongest(told).numpy(), told.numpy().argmax(1))
    assert strongest(torch.full(shape, torch.nan)).max() < shape[1]  # a training that diverges is told so elsewhere


@pytest.mark.parametrize("chunk", [1, 3000, 2**23])
@pytest.mark.parametrize("size", [(41, 50), (7, 9), (20, 30), (20, 45)])
def test_logits_are_resized_in_pieces_as_in_one(monkeypatch: pytest.MonkeyPatch, size: tuple[int, int], chunk: int):
    monkeypatch.setattr(segmentation, "CHUNK", chunk)
    told, truth = logits(3, maps()), maps(4, (3, *size))
    whole = F.interpolate(told, size, mode="bilinear", align_corners=False)
    found = torch.cat([part.movedim(1, -1).flatten(0, 2) for part, _ in bands(told, truth)])
    torch.testing.assert_close(found, whole.movedim(1, -1).flatten(0, 2), atol=1e-5, rtol=0)
    assert torch.equal(torch.cat([t.flatten() for _, t in bands(told, truth)]), truth.flatten())
    assert (answered(told, truth) == whole.argmax(1)).float().mean() > 0.999
    assert max(part.numel() for part, _ in bands(told, truth)) <= max(chunk, CLASSES * size[1])


def test_a_map_without_a_known_pixel_adds_nothing():
    task, nothing = Segmentation(), torch.full((2, 4, 5), -1)
    told = torch.randn(2, CLASSES, 4, 5)
    assert set(task.tally(told, nothing)) == {0.0}
    assert float(task.loss(told, nothing)) == 0.0
    assert task.counted(nothing).tolist() == [0, 0]


def test_a_model_that_answers_with_one_class_per_image_is_refused():
    with pytest.raises(UnsupportedModelError, match=r"answers with \(7,\) numbers per image.*segmenter"):
        Segmentation().loss(torch.zeros(2, 7), torch.zeros(2, 4, 4, dtype=torch.int64))


@pytest.mark.parametrize(("shape", "step"), [((3, 20, 30), (1, 1)), ((2, 70, 90), (3, 3))])
def test_judged_pixels_are_those_of_a_lattice_and_all_of_a_small_map(shape, step):
    from vitscope.data.batch import Batch

    truth = maps(0, shape)
    outputs = logits(1, truth).double().requires_grad_()
    found, targets, items = Segmentation().judged(
        Batch(outputs, truth, torch.arange(len(truth)), [""], outputs=outputs)
    )
    expected = [
        (b, y, x)
        for b in range(shape[0])
        for y in range((step[0] - 1) // 2, shape[1], step[0])
        for x in range((step[1] - 1) // 2, shape[2], step[1])
        if truth[b, y, x] >= 0
    ]
    b, y, x = (torch.tensor(place) for place in zip(*expected))
    assert torch.equal(items, b)
    assert torch.equal(targets, truth[b, y, x])
    assert torch.equal(found, outputs[b, :, y, x])
    found.sum().backward()
    assert int((outputs.grad[:, 0] == 1).sum()) == len(expected)
