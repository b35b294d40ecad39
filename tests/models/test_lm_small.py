"""`lm-small`: a decoder of our own, with every attention, under every lens."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F

from vitscope import open_model
from vitscope.attention import convert
from vitscope.errors import DataError, VitscopeError
from vitscope.models.weights import load_into
from vitscope.registry import ATTENTIONS

SIZES = {"num_classes": 40, "context": 16, "depth": 2, "embed_dim": 32, "num_heads": 4}
NAMES = ("lm-small", "symlm")


def small(name: str = "lm-small", **options):
    extra = {"mlp_dim": 64, "cutoffs": [10, 20]} if name == "symlm" else {}
    model = open_model(name, "random", **{**SIZES, **extra, **options})
    with torch.no_grad():
        for weight in model.module.parameters():
            weight.normal_(std=0.3)  # far from the quiet start, where everything is almost the same
    return model


def texts(seed: int = 0, n: int = 16) -> torch.Tensor:
    return torch.randint(0, 40, (3, n), generator=torch.Generator().manual_seed(seed))


def changed_behind(x: torch.Tensor, place: int) -> torch.Tensor:
    return torch.cat([x[:, :place], (x[:, place:] + 7) % 40], 1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("attention", ATTENTIONS.names())
@pytest.mark.parametrize("place", [1, 9, 15])
@torch.no_grad()
def test_no_attention_lets_a_later_token_change_an_earlier_answer(name, attention, place):
    model = small(name)
    convert(model, attention, **({"variant": "paper", "lambd": 0.5} if attention == "rpc" else {}))
    before, after = model(texts()), model(changed_behind(texts(), place))
    assert torch.equal(before[:, :place], after[:, :place])
    assert not torch.allclose(before[:, place:], after[:, place:])


def test_the_published_mu_over_all_tokens_is_refused_where_later_ones_are_hidden():
    model = small()
    convert(model, "rpc", variant="code")
    with pytest.raises(VitscopeError, match="variant='paper'"):
        model(texts())


@torch.no_grad()
def test_rpc_without_outliers_in_one_iteration_is_symmetric_attention():
    rpc, symmetric = small(), small()
    symmetric.module.load_state_dict(rpc.module.state_dict())
    convert(rpc, "rpc", variant="paper", iterations=1, lambd=1e6)  # so large a threshold that nothing sticks out
    convert(symmetric, "symmetric")
    torch.testing.assert_close(rpc(texts()), symmetric(texts()), rtol=0, atol=1e-5)


@torch.no_grad()
def test_it_is_the_decoder_that_its_docstring_writes_down():
    model, x = small(), texts()
    module = model.module
    h = module.embed.weight[x] + module.places[:16]
    hidden = torch.ones(16, 16, dtype=torch.bool).tril()
    for block in module.blocks:
        q, k, v = block.attn.qkv(block.norm1(h)).reshape(3, 16, 3, 4, 8).permute(2, 0, 3, 1, 4)
        weights = (q @ k.mT / 8**0.5).masked_fill(~hidden, float("-inf")).softmax(-1)
        h = h + block.attn.proj((weights @ v).transpose(1, 2).flatten(2))
        h = h + block.mlp.fc2(F.gelu(block.mlp.fc1(block.norm2(h))))
    torch.testing.assert_close(model(x), module.norm(h) @ module.embed.weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_padding_at_the_right_changes_nothing_and_at_the_left_is_refused(name):
    model, x = small(name), texts(n=10)
    alone = model(x[:1, :6])
    mask = torch.tensor([[1] * 6 + [0] * 4, [1] * 10, [1] * 10])
    padded = model({"input_ids": x, "attention_mask": mask})
    torch.testing.assert_close(padded[:1, :6], alone, rtol=0, atol=1e-5)
    with pytest.raises(DataError, match="padded at the right"):
        model({"input_ids": x, "attention_mask": mask.flip(1)})


def test_the_table_of_words_is_one_tensor_that_is_saved_once():
    model = small()
    module = model.module
    assert "head.weight" not in module.state_dict()
    module.head(torch.ones(1, 1, 32)).sum().backward()
    assert module.embed.weight.grad is not None
    twin = copy.deepcopy(module)
    assert twin.head.weight is twin.embed.weight
    assert twin.embed.weight is not module.embed.weight
    other = small().module
    load_into(other, module.state_dict(), "a file")
    assert torch.equal(other.head.weight, module.embed.weight)


@torch.no_grad()
def test_the_vocabulary_is_read_at_every_block():
    model, x = small(), texts()
    logits, cache = model.run_with_cache(x, ["blocks.*.hook_resid_post"])
    torch.testing.assert_close(model.to_class_space(cache["blocks.1.hook_resid_post"]), logits, rtol=1e-4, atol=1e-4)
    _, log_p = model.rank_and_log_probability(cache["blocks.1.hook_resid_post"], x)
    torch.testing.assert_close(log_p, logits.log_softmax(-1).gather(-1, x[..., None])[..., 0], rtol=1e-3, atol=1e-3)


def test_a_text_longer_than_the_positions_is_refused():
    with pytest.raises(DataError, match="20 tokens, and the model has 16 positions"):
        small()(texts(n=20))


@pytest.mark.parametrize("wrong", [{"embed_dim": 30}, {"context": 0}, {"depth": 0}, {"heads": 4}])
def test_sizes_of_which_there_is_no_model_are_refused(wrong):
    with pytest.raises(VitscopeError):
        open_model("lm-small", "random", **{**SIZES, **wrong})
