"""Attention statistics against a brute force over the whole float64 pattern, query by query."""

import math

import numpy as np
import pytest
import torch
from scipy.special import entr

from vitscope.analyses.attention import Attention, row_entropy, token_distances, uniform_value
from vitscope.analyses.one_pass import measure
from vitscope.data.batch import Batch
from vitscope.models import open_model

SMALL = {"img_size": (28, 56), "patch_size": (7, 14), "in_chans": 1}
SMALL |= {"embed_dim": 48, "depth": 3, "num_heads": 3, "num_classes": 10}
NAMES = {
    "one class token": ("vit_tiny_patch16_224", {}),
    "class and registers": ("vit_tiny_patch16_224", {"reg_tokens": 3}),
    "no class token": ("vit_tiny_patch16_224", {"class_token": False, "global_pool": "avg"}),
    "class and distillation": ("deit_tiny_distilled_patch16_224", {}),
}


def make_batches(n, size, seed=0, batch=4):
    images = torch.randn(n, *size, generator=torch.Generator().manual_seed(seed))
    for b, start in enumerate(range(0, n, batch)):
        part = images[start : start + batch]
        indices = torch.arange(start, start + len(part))
        yield Batch(part, torch.zeros(len(part), dtype=torch.int64), indices, [str(i) for i in indices], number=b)


def brute_force(pattern, layout):
    """{(head, query, metric): [value per image]} from one block's pattern (B, H, N, N), straight from the formulas."""
    a = pattern.double().numpy()
    c, p, n = layout.class_tokens, layout.prefix_tokens, layout.tokens
    kinds = {"class": range(c), "register": range(c, p), "image": range(p, n)}
    rows, columns = layout.grid
    place = [((r + 0.5) * layout.patch[0], (k + 0.5) * layout.patch[1]) for r in range(rows) for k in range(columns)]
    out = {}
    for image in a:
        for h, head in enumerate(image):
            for kind, queries in kinds.items():
                if not queries:
                    continue
                entropy = np.mean([-sum(x * math.log(x) for x in head[q] if x > 0) for q in queries])
                out.setdefault((h, kind, "entropy"), []).append(entropy)
                out.setdefault((h, kind, "entropy_normalised"), []).append(entropy / math.log(n))
                out.setdefault((h, kind, "mass_self"), []).append(np.mean([head[q, q] for q in queries]))
                if c:
                    out.setdefault((h, kind, "mass_class"), []).append(np.mean([sum(head[q, :c]) for q in queries]))
                if p > c:
                    out.setdefault((h, kind, "mass_register"), []).append(np.mean([sum(head[q, c:p]) for q in queries]))
            mass = travelled = 0.0
            for i in range(n - p):
                for j in range(n - p):
                    mass += head[p + i, p + j]
                    travelled += head[p + i, p + j] * math.dist(place[i], place[j])
            out.setdefault((h, "image", "distance"), []).append(travelled / mass)
    return out


@pytest.mark.parametrize("kind", NAMES)
def test_statistics_are_those_of_a_brute_force_over_the_pattern(kind):
    name, options = NAMES[kind]
    model = open_model(name, "random", **SMALL, **options)
    analysis = Attention()
    with torch.no_grad():  # sharpen the heads: random ones are close to uniform
        for block in model.module.blocks:
            block.attn.qkv.weight.mul_(12)
    measure(model, make_batches(6, (1, 28, 56)), [analysis])
    table = analysis.tables()["attention"]

    images = torch.cat([b.images for b in make_batches(6, (1, 28, 56))])
    with torch.no_grad():
        _, cache = model.run_with_cache(images, ["blocks.*.attn.hook_pattern"])
    expected = {}
    for block in range(3):
        found = brute_force(cache[f"blocks.{block}.attn.hook_pattern"], model.layout)
        expected |= {(block, *key): values for key, values in found.items()}

    assert len(table) == len(expected)
    for row in table.itertuples():
        values = expected[row.block, row.head, row.query, row.metric]
        assert row.mean == pytest.approx(np.mean(values), rel=2e-6, abs=1e-7)
        assert row.std == pytest.approx(np.std(values), rel=1e-4, abs=1e-6)
        assert row.n == 6


def test_uniform_attention_has_the_values_of_the_uniform_column():
    model = open_model("vit_tiny_patch16_224", "random", **SMALL, reg_tokens=2)
    with torch.no_grad():
        for block in model.module.blocks:
            block.attn.qkv.weight.zero_()
            block.attn.qkv.bias.zero_()
    analysis = Attention()
    measure(model, make_batches(2, (1, 28, 56)), [analysis])
    table = analysis.tables()["attention"]
    assert np.allclose(table["mean"], table["uniform"], rtol=1e-6)
    assert set(table["query"]) == {"class", "register", "image"}


def test_entropy_of_zeros_and_subnormal_numbers_is_that_of_scipy():
    row = torch.tensor([[1.0, 0.0, 0.0], [0.5, 0.5, 0.0], [1.0, 1e-40, 3e-45], [0.2, 0.3, 0.5]])
    assert row_entropy(row).tolist() == pytest.approx(entr(row.double().numpy()).sum(1).tolist(), abs=1e-7)


def test_distances_are_between_patch_centres_in_pixels():
    d = token_distances((2, 3), (10, 20))
    assert d[0].tolist() == pytest.approx([0, 20, 40, 10, math.hypot(10, 20), math.hypot(10, 40)])
    assert torch.equal(d, d.T)


def test_a_head_that_never_looks_at_the_picture_has_no_distance():
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    analysis = Attention()
    analysis.start(model)
    batch = next(make_batches(2, (1, 28, 56)))
    pattern = torch.zeros(len(batch), 3, model.layout.tokens, model.layout.tokens)
    pattern[..., 0] = 1.0  # all on the class token
    for block in range(3):
        analysis.update(block, {f"blocks.{block}.attn.hook_pattern": pattern}, batch)
    analysis.end_batch(batch)
    table = analysis.tables()["attention"]
    assert "distance" not in set(table["metric"])
    assert not table.isna().any().any()
    assert (table[table.metric == "mass_class"]["mean"] == 1).all()


def test_maps_are_the_class_tokens_mean_attention_for_the_images_of_the_gallery():
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    analysis = Attention()
    measure(model, make_batches(10, (1, 28, 56)), [analysis])
    import pandas as pd

    maps = pd.concat(analysis.rows["maps_attention"])
    assert sorted(set(maps.image)) == list(range(8))
    images = torch.cat([b.images for b in make_batches(10, (1, 28, 56))])
    with torch.no_grad():
        _, cache = model.run_with_cache(images, ["blocks.1.attn.hook_pattern"])
    expected = cache["blocks.1.attn.hook_pattern"][5, :, 0, 1:].mean(0)
    shown = maps[(maps.image == 5) & (maps.block == 1)].sort_values(["row", "col"])
    assert np.allclose(shown.value, expected, atol=1e-7)
    assert list(maps.columns) == ["image", "map", "block", "row", "col", "value"]


def test_uniform_distance_is_the_mean_over_all_pairs_of_patches():
    model = open_model("vit_tiny_patch16_224", "random", **SMALL)
    points = [(7 * r, 14 * c) for r in range(4) for c in range(4)]
    expected = np.mean([math.dist(a, b) for a in points for b in points])
    assert uniform_value("distance", model.layout) == pytest.approx(expected)
