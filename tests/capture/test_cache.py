"""Keys of a cache: full names, points, and what TransformerLens users type."""

from __future__ import annotations

import pytest
import torch

from vitscope.capture import Cache, Point, all_points
from vitscope.errors import MissingPointError

NAMES = all_points(4)
CACHE = Cache(NAMES, 4, {name: torch.tensor(i) for i, name in enumerate(NAMES)})


@pytest.mark.parametrize(
    ("key", "name"),
    [
        (("resid_post", 3), "blocks.3.hook_resid_post"),
        (("hook_resid_post", -1), "blocks.3.hook_resid_post"),
        (("pattern", 0), "blocks.0.attn.hook_pattern"),
        (("pattern", 0, "attn"), "blocks.0.attn.hook_pattern"),
        (("out", 2, "mlp"), "blocks.2.mlp.hook_out"),
        (("post", 1, "mlp"), "blocks.1.mlp.hook_post"),
        (Point("blocks.2.attn.hook_q"), "blocks.2.attn.hook_q"),
        ("hook_embed", "hook_embed"),
    ],
)
def test_a_point_is_found_by_its_short_key(key, name):
    assert int(CACHE[key]) == NAMES.index(name)
    assert key in CACHE
    assert CACHE.get(key) is CACHE[name]


def test_a_key_that_is_not_at_hand_is_not_in_it():
    cache = Cache(["hook_embed"], 4)
    assert ("resid_post", 1) not in cache
    assert cache.get(("resid_post", 1), 7) == 7


@pytest.mark.parametrize(
    ("key", "message"),
    [
        (("resid_pst", 3), "Did you mean resid_post"),
        (("out", 2), "Did you mean .'out', 2, 'attn'. or .'out', 2, 'mlp'."),
        (("k", 1, "a"), r"Did you mean \('k', 1, 'attn'\)\?"),
        (("mlp_out", 1, "mlp"), r"Did you mean \('mlp_out', 1\)\?"),
        (("pattern", 2, "mlp"), "is no point"),
        (("resid_post", 4), "4 blocks, 0 to 3"),
        (("resid_post", "3"), "expected .'resid_post', 3."),
        (("resid_post",), "expected .'resid_post', 3."),
        ((), "expected .'resid_post', 3."),
        ("blocks.2.hook_resid_pots", "Did you mean blocks.2.hook_resid_post"),
    ],
)
def test_a_key_that_is_none_is_answered_with_what_was_meant(key, message):
    with pytest.raises(MissingPointError, match=message):
        CACHE[key]


def test_a_short_key_that_was_not_asked_for_says_so():
    with pytest.raises(MissingPointError, match=r"blocks\.1\.hook_resid_post was not asked for"):
        Cache(["hook_embed"], 4)["resid_post", 1]
