"""Signed ranks from counts against scipy on the pairs themselves."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.stats import wilcoxon

from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.control import shared_twin
from vitscope.analyses.one_pass import measure
from vitscope.statistics.signed_ranks import difference_counts, signed_rank_p


@pytest.mark.parametrize("shift", [0, 0.6])
def test_counts_of_differences_give_the_p_of_the_pairs(shift):
    generator = np.random.default_rng(0)
    second = generator.integers(0, 19, 300) / 2  # half ranks among ten classes
    first = np.clip(np.round(2 * (second - shift + generator.normal(0, 1.5, 300))) / 2, 0, 9)
    expected = wilcoxon(-first, -second, alternative="greater", method="approx").pvalue
    counts = difference_counts(torch.from_numpy(first), torch.from_numpy(second), 10)
    assert signed_rank_p(counts) == pytest.approx(expected, rel=1e-6)
    assert signed_rank_p(difference_counts(torch.ones(4), torch.ones(4), 10)) == 1


def test_the_published_test_against_random_weights_pairs_the_tokens_of_both_models(model, tools):
    batches = [tools["make_batch"](model, 4, seed=s, first=4 * s) for s in range(2)]
    analysis = Identifiability(variant="code", control="random")
    measure(model, batches, [analysis])
    table = analysis.tables()["class_space_against_random"].set_index("block")
    found = {}
    for name, who in (("own", model), ("random", shared_twin(model, 0))):
        ranks = []
        for batch in batches:
            with torch.no_grad():
                _, cache = who.run_with_cache(batch.images, "blocks.1.hook_resid_post")
                logits = who.to_class_space(cache["blocks.1.hook_resid_post"])
            true = logits.gather(-1, batch.labels[:, None, None].expand(-1, logits.shape[1], 1))
            ranks.append((logits > true).sum(-1))
        found[name] = -torch.cat(ranks).flatten().numpy()  # whole numbers: ties are ties
    expected = wilcoxon(found["own"], found["random"], alternative="greater", method="approx").pvalue
    assert table.loc[1, "p_wilcoxon"] == pytest.approx(expected, rel=1e-6)
    assert table.loc[1, "n_tokens"] == 8 * 17
    plain = Identifiability(control="random")
    measure(model, batches, [plain])
    assert "class_space_against_random" not in plain.tables()
