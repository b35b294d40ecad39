from __future__ import annotations

import pytest
import torch
from sklearn.metrics import average_precision_score

from vitscope.analyses.class_space.localisation import average_precision, object_share, pointing_game, usable


@pytest.mark.parametrize("ties", [False, True])
def test_average_precision_equals_scikit_learns(ties: bool):
    generator = torch.Generator().manual_seed(0)
    masks = torch.randint(0, 2, (50, 49), generator=generator, dtype=torch.uint8)
    masks[torch.rand(50, 49, generator=generator) < 0.1] = 255
    scores = torch.randn(50, 49, generator=generator)
    scores = (scores * 2).round() if ties else scores
    got = average_precision(scores, masks)
    for i in range(50):
        counted = masks[i] != 255
        expected = average_precision_score((masks[i][counted] == 1).numpy(), scores[i][counted].numpy())
        assert float(got[i]) == pytest.approx(expected, abs=1e-12)


def test_pointing_game_looks_at_the_largest_counted_token_and_shares_ties():
    masks = torch.tensor([[0, 1, 255], [0, 1, 255], [0, 1, 1], [1, 1, 0]])
    scores = torch.tensor([[0.1, 0.5, 0.9], [0.6, 0.5, 0.9], [0.7, 0.7, 0.1], [0.0, 0.0, 0.0]])
    assert pointing_game(scores, masks).tolist() == pytest.approx([1.0, 0.0, 0.5, 2 / 3])


def test_images_without_object_or_context_are_not_usable():
    masks = torch.tensor([[0, 0, 255], [1, 1, 255], [0, 1, 255]])
    assert usable(masks).tolist() == [False, False, True]
    assert object_share(masks).tolist() == [0, 1, 0.5]


def test_random_relevance_scores_the_object_share():
    generator = torch.Generator().manual_seed(0)
    masks = (torch.rand(400, 196, generator=generator) < 0.3).to(torch.uint8)
    scores = torch.rand(400, 196, generator=generator)
    share = object_share(masks).mean().item()
    assert pointing_game(scores, masks).mean().item() == pytest.approx(share, abs=0.06)
    assert average_precision(scores, masks).mean().item() == pytest.approx(share, abs=0.03)
