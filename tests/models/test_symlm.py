"""`symlm`: every published setting, and the adaptive softmax against the softmax that it factorises."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from vitscope import open_model
from vitscope.errors import VitscopeError
from vitscope.models.adaptive_softmax import AdaptiveSoftmax
from vitscope.models.creation import sketch
from vitscope.models.decoder import sinusoids

SIZES = {"num_classes": 60, "context": 12, "depth": 2, "embed_dim": 16, "num_heads": 2, "mlp_dim": 32}


def build(**options):
    return open_model("symlm", "random", **{**SIZES, "cutoffs": [20, 40], **options}).module


@pytest.fixture(scope="module")
def published():
    return sketch("symlm")  # without memory: it has 44 million weights


def test_the_published_sizes_are_the_defaults(published):
    block = published.blocks[0]
    assert len(published.blocks) == 16
    assert published.context == 256
    assert (block.attn.num_heads, block.attn.head_dim) == (8, 16)
    assert (block.mlp.fc1.out_features, type(block.mlp.act)) == (2048, nn.ReLU)
    # 44 million: the table, per block 4 projections, the MLP and two norms, and per word a bias and per cluster a row
    table, block_size = 267_735 * 128, 4 * 128**2 + 2 * 128 * 2048 + 2048 + 128 + 4 * 128
    assert published.embed.weight.numel() == table == 34_270_080
    assert sum(p.numel() for p in published.parameters()) == table + 16 * block_size + 267_735 + 3 * 129
    assert published.head.bounds == [0, 20_000, 40_000, 200_000, 267_735]


def test_projections_of_attention_have_no_bias_and_the_mlp_has(published):
    block = published.blocks[0]
    assert block.attn.qkv.bias is None
    assert block.attn.proj.bias is None
    assert block.mlp.fc1.bias is not None
    assert block.mlp.fc2.bias is not None
    assert build(projection_bias=True).blocks[0].attn.qkv.bias is not None
    assert isinstance(build(activation="gelu").blocks[0].mlp.act, nn.GELU)


def test_dropout_is_everywhere_but_on_the_weights_of_attention(published):
    block = published.blocks[0]
    rates = [
        part.p for part in (published.drop, published.drop_last, block.drop_path1, block.mlp.drop1, block.mlp.drop2)
    ]
    assert rates == [0.1] * 5
    assert block.attn.attn_drop.p == 0 == build(dropout=0.0).drop.p
    assert build(attention_dropout=0.2).blocks[0].attn.attn_drop.p == 0.2


def written_out(w: dict[str, torch.Tensor], tokens: torch.Tensor, depth: int, heads: int, cutoffs: list[int]):
    """The published model from its weights, one text (N,) -> log-probabilities (N, V): no module, no fused call."""
    n, width = len(tokens), w["embed.weight"].shape[1]
    x = w["embed.weight"][tokens] * math.sqrt(width)
    for i in range(n):
        for j in range(width // 2):
            angle = (n - 1 - i) / 10000 ** (2 * j / width)
            x[i, j] += math.sin(angle)
            x[i, width // 2 + j] += math.cos(angle)
    for b in range(depth):
        k = {name.removeprefix(f"blocks.{b}."): value for name, value in w.items() if name.startswith(f"blocks.{b}.")}
        q_k_v = (x @ k["attn.qkv.weight"].T).chunk(3, -1)
        parts = []
        for q, key, v in zip(*(part.chunk(heads, -1) for part in q_k_v)):
            scores = (q @ key.T / math.sqrt(width // heads)).exp().tril()  # a token sees itself and what was before
            parts.append(scores / scores.sum(1, keepdim=True) @ v)
        x = normalised(x + torch.cat(parts, -1) @ k["attn.proj.weight"].T, k["norm1.weight"], k["norm1.bias"])
        middle = (x @ k["mlp.fc1.weight"].T + k["mlp.fc1.bias"]).clamp_min(0)
        x = normalised(x + middle @ k["mlp.fc2.weight"].T + k["mlp.fc2.bias"], k["norm2.weight"], k["norm2.bias"])
    logits = x @ w["embed.weight"].T + w["head.bias"]
    clusters = x @ w["head.clusters.weight"].T + w["head.clusters.bias"]
    first = torch.cat([logits[:, : cutoffs[0]], clusters], 1).softmax(1)
    found = [first[:, : cutoffs[0]]]
    for c, (start, stop) in enumerate(pairwise([*cutoffs, len(w["embed.weight"])])):
        found.append(first[:, cutoffs[0] + c, None] * logits[:, start:stop].softmax(1))
    return torch.cat(found, 1).log()


def normalised(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    centred = x - x.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight + bias


@torch.no_grad()
def test_it_is_the_published_model_written_out():
    module = build().double().eval()
    generator = torch.Generator().manual_seed(0)
    for weight in module.parameters():
        weight.normal_(std=0.4, generator=generator)
    module.register_buffer("places", sinusoids(12, 16).double(), persistent=False)  # to the last digits
    texts = torch.randint(0, 60, (3, 12), generator=generator)
    expected = torch.stack([written_out(module.state_dict(), text, 2, 2, [20, 40]) for text in texts])
    torch.testing.assert_close(module(texts), expected, rtol=0, atol=1e-6)
    shorter = written_out(module.state_dict(), texts[0, :7], 2, 2, [20, 40])
    mask = torch.ones(3, 12, dtype=torch.int64)
    mask[0, 7:] = 0
    torch.testing.assert_close(module(texts, mask)[0, :7], shorter, rtol=0, atol=1e-6)  # the end is its own end


@torch.no_grad()
def test_blocks_normalise_the_sum():
    block, x = build().blocks[0], torch.randn(2, 5, 16)
    mid = F.layer_norm(x + block.attn(x, is_causal=True), (16,))
    torch.testing.assert_close(block(x, is_causal=True), F.layer_norm(mid + block.mlp(mid), (16,)))
    before = build(norm="pre")
    assert isinstance(before.norm, nn.LayerNorm)
    assert not isinstance(build().norm, nn.LayerNorm)


@torch.no_grad()
@pytest.mark.parametrize(("positions", "scale"), [("end", True), ("start", True), ("end", False)])
def test_embeddings_are_scaled_and_places_counted_from_the_end(positions, scale):
    module = build(positions=positions, embedding_scale=scale)
    x = torch.arange(5)[None]
    place = torch.arange(5).flip(0) if positions == "end" else torch.arange(5)
    angle = place[:, None] / 10000 ** (torch.arange(0, 16, 2) / 16)
    expected = module.embed.weight[:5] * (4.0 if scale else 1.0) + torch.cat([angle.sin(), angle.cos()], 1)
    torch.testing.assert_close(module.embedded(x, None)[0], expected, rtol=1e-5, atol=1e-5)


def test_the_softmax_shares_the_words_of_the_embedding():
    module = build()
    assert module.head.vectors is module.embed.weight
    assert "head.weight" not in module.state_dict()
    assert "head.weight" in build(tied=False).state_dict()


def random_softmax(cutoffs=(20, 40)) -> tuple[AdaptiveSoftmax, torch.Tensor]:
    torch.manual_seed(0)
    softmax, x = AdaptiveSoftmax(8, 60, cutoffs).double(), torch.randn(50, 8, dtype=torch.float64)
    with torch.no_grad():
        for weight in softmax.parameters():
            weight.normal_()
    return softmax, x


@torch.no_grad()
def test_log_probabilities_are_the_product_of_two_softmaxes():
    softmax, x = random_softmax()
    logits = x @ softmax.weight.T + softmax.bias
    head = torch.cat([logits[:, :20], softmax.clusters(x)], 1).softmax(1)
    one, two = logits[:, 20:40].softmax(1) * head[:, 20, None], logits[:, 40:].softmax(1) * head[:, 21, None]
    expected = torch.cat([head[:, :20], one, two], 1)
    torch.testing.assert_close(softmax(x).exp(), expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(softmax(x).exp().sum(1), torch.ones(50, dtype=torch.float64))


@torch.no_grad()
def test_it_is_the_plain_softmax_where_a_cluster_weighs_what_its_words_weigh():
    softmax, x = random_softmax()
    logits = x @ softmax.weight.T + softmax.bias
    softmax.clusters.forward = lambda x: torch.stack([logits[:, 20:40].logsumexp(1), logits[:, 40:].logsumexp(1)], 1)
    torch.testing.assert_close(softmax(x), logits.log_softmax(1), rtol=0, atol=1e-6)


@torch.no_grad()
@pytest.mark.parametrize("cutoffs", [(), (20,), (20, 40), (20, 40, 200)])
def test_the_cheap_loss_is_that_of_all_log_probabilities(cutoffs):
    softmax, x = random_softmax(cutoffs)
    targets = torch.randint(0, 60, (50,))
    targets[::7] = -1
    expected = F.nll_loss(softmax(x), targets, ignore_index=-1, reduction="none")
    torch.testing.assert_close(softmax.nats(x, targets), expected, rtol=0, atol=1e-12)


def test_the_cheap_loss_has_the_gradients_of_the_whole_one():
    softmax, x = random_softmax()
    targets = torch.randint(0, 60, (50,))
    cheap = torch.autograd.grad(softmax.nats(x, targets).sum(), list(softmax.parameters()))
    whole = torch.autograd.grad(F.nll_loss(softmax(x), targets, reduction="sum"), list(softmax.parameters()))
    for a, b in zip(cheap, whole):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-10)


@torch.no_grad()
def test_the_model_answers_nats_where_it_is_told_the_targets():
    module = build().eval()
    x, y = torch.randint(0, 60, (2, 12)), torch.randint(0, 60, (2, 12))
    expected = -module(x).gather(-1, y[..., None])[..., 0]
    torch.testing.assert_close(module(x, targets=y), expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "wrong", [{"activation": "tanh"}, {"norm": "both"}, {"positions": "middle"}, {"cutoffs": [40, 20]}]
)
def test_settings_that_do_not_exist_are_refused(wrong):
    with pytest.raises(VitscopeError):
        build(**wrong)
