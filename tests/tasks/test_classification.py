from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitscope.data import Batch
from vitscope.errors import VitscopeError
from vitscope.tasks import Classification, Measure, Words, register_task, task_of
from vitscope.tasks.words import PICTURES

LOGITS = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0], [1.0, 1.0, 0.5]], dtype=torch.float64)
LABELS = torch.tensor([0, 2, -1])


def test_what_is_compared_adds_up_over_items():
    task, known = Classification(), LABELS >= 0
    expected = F.cross_entropy(LOGITS[known], LABELS[known], reduction="sum")
    torch.testing.assert_close(task.loss(LOGITS[known], LABELS[known]), expected)
    torch.testing.assert_close(task.item_loss(LOGITS[known], LABELS[known]).sum(), expected)
    assert task.right(LOGITS, LABELS).tolist() == [True, False, False]
    assert task.fooled(LOGITS, LABELS).tolist() == [False, True, True]
    assert task.counted(LABELS).tolist() == [True, True, False]
    assert task.figures(3.0, 1, 2) == {"loss": 1.5, "accuracy": 0.5}
    batch = Batch(torch.zeros(3, 1), LABELS, torch.arange(3), ["a", "b", "c"], outputs=LOGITS)
    logits, classes, items = task.judged(batch)
    assert torch.equal(logits, LOGITS[known])
    assert (classes.tolist(), items.tolist()) == ([0, 2], [0, 1])


def test_data_name_their_task_or_are_about_classes_of_pictures():
    @register_task("none of ours")
    class Own(Classification):
        measure = Measure("loss", "nats", larger=False)

    assert isinstance(task_of(object()), Classification)
    assert isinstance(task_of(type("D", (), {"task": "none of ours"})), Own)
    own = Own(Words("moth", "moths", "scale", "scales"))
    assert task_of(type("D", (), {"task": own})) is own
    assert own.describe() == {"name": "none of ours", "words": own.words.to_dict()}
    assert Classification().describe() is None
    assert own.measure.better(1.0, 2.0) > own.measure.better(2.0, 1.0)
    with pytest.raises(VitscopeError, match=r"no task 'clasification'. Did you mean classification"):
        task_of(type("D", (), {"task": "clasification"}))


def test_sentences_for_pictures_are_said_in_other_words():
    words = Words("text", "texts", "token", "tokens")
    said = words.say("Image tokens of 5 images: an image's patches, one image-token query. Imagenet stays.")
    assert said == "Tokens of 5 texts: an text's tokens, one token query. Imagenet stays."
    assert PICTURES.say("Images") == "Images"
    assert Words.of_config({"task": {"name": "language", "words": words.to_dict()}}) == words
    assert Words.of_config({}) == PICTURES
