"""When is an accuracy near chance, and of which models is that remarked?"""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from vitscope.analyses.chance import chance_remark, is_new, near_chance
from vitscope.report.provenance import QUESTION


@pytest.mark.parametrize(
    ("right", "n", "classes"),
    [
        (54, 5000, 1000),  # folders 0 to 999 read as text, a real ViT-Tiny
        (9, 1000, 1000),
        (0, 120, 1000),
        (30, 300, 10),
        (3, 100, 10),  # two classes changed places: below chance
        (20, 200, 2),
        (1000, 2000, 2),
    ],
)
def test_an_accuracy_is_near_chance(right, n, classes):
    assert near_chance(right, n, classes)


@pytest.mark.parametrize(
    ("right", "n", "classes"),
    [
        (0, 0, 1000),
        (0, 20, 1000),  # too few to say
        (60, 1000, 1000),  # poor, but sixty times chance
        (735, 1000, 1000),
        (5, 50, 10),
        (60, 300, 10),
        (1100, 2000, 2),
    ],
)
def test_an_accuracy_is_not_near_chance_or_nobody_can_tell(right, n, classes):
    assert not near_chance(right, n, classes)


def model(**changes):
    head = nn.Linear(4, 20)
    values = {
        "num_classes": 20,
        "classes": None,
        "source": {"weights": "file.safetensors"},
        "module": SimpleNamespace(head=head),
        "active_edits": dict,
    }
    return SimpleNamespace(**values | changes)


DATA = SimpleNamespace(classes=[f"c{i}" for i in range(20)], labels=list(range(20)) * 20)


def test_a_trained_head_near_chance_is_asked_about_the_order():
    remark = chance_remark(model(), DATA, 20, 400)
    assert QUESTION in remark
    assert "20 of 400 images are recognised (5 %)" in remark
    assert "(5 % with 20 classes)" in remark
    assert "c0, c1, c2" in remark
    assert chance_remark(model(), DATA, 200, 400) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"source": {"weights": "random, seed 0"}},
        {"source": {"weights": "timm pretrained, new head from seed 0"}},
        {"classes": DATA.classes},
        {"active_edits": lambda: {"blocks.0.hook_attn_out": ["zero"]}},
    ],
    ids=["random", "new-head", "classes-known-by-name", "edited"],
)
def test_a_model_that_may_well_be_at_chance_is_not_remarked(changes):
    assert chance_remark(model(**changes), DATA, 20, 400) is None


def test_a_head_as_it_is_built_is_new_and_a_trained_one_is_not():
    module = SimpleNamespace(head=nn.Linear(4, 20))
    assert not is_new(model(module=module, source={}))
    with torch.no_grad():
        module.head.bias.zero_()
    assert is_new(model(module=module, source={}))


def test_a_few_hard_classes_are_no_reason_to_doubt():
    hard = SimpleNamespace(classes=DATA.classes, labels=[3, 7] * 200)
    assert chance_remark(model(), hard, 0, 400) is None
