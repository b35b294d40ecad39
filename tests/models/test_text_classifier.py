"""An encoder with classes behind it, against what its parts give by themselves; variants of attention in encoders."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))
sys.path.insert(0, str(Path(__file__).parents[1] / "attention"))
from attention_oracles import explicit_rpc, explicit_softmax

import text_models
from vitscope import open_model
from vitscope.attention import convert, describe_attention
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.text_classifier import NAME, TextClassifier, build_encoder, encoder_json, encoder_of, pooled

BERTS = ["bert", "roberta", "xlm-roberta", "camembert", "electra"]


def classifier(family: str = "bert", pool: str = "") -> TextClassifier:
    module = encoder_of(text_models.build(family))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return TextClassifier(module, 3, pool, dropout=0.1).eval()


@torch.no_grad()
@pytest.mark.parametrize(
    ("family", "pool"), [("bert", "first"), ("bert", "mean"), ("gpt2", "last"), ("llama", ""), ("distilbert", "")]
)
def test_padding_changes_nothing_and_a_text_gives_what_it_gives_alone(family, pool):
    module, padded = classifier(family, pool), text_models.texts((9, 5))
    together = module(**padded)
    for row, length in enumerate((9, 5)):
        ids = padded["input_ids"][row : row + 1, :length]
        tokens = module.encoder(ids).last_hidden_state[0]
        chosen = {"first": tokens[0], "mean": tokens.mean(0), "last": tokens[-1]}[module.pool]
        torch.testing.assert_close(module(ids)[0], module.head(chosen))
        torch.testing.assert_close(together[row], module.head(chosen), rtol=1e-4, atol=1e-5)
    assert module.pool == (pool or {"llama": "last", "distilbert": "mean"}[family])


def test_pooling_knows_the_mask():
    tokens = torch.arange(12.0).view(1, 4, 3)
    mask = torch.tensor([[1, 1, 0, 0]])
    assert pooled(tokens, mask, "mean").tolist() == [[1.5, 2.5, 3.5]]
    assert pooled(tokens, mask, "last").tolist() == [[3.0, 4.0, 5.0]]
    assert pooled(tokens, None, "last").tolist() == [[9.0, 10.0, 11.0]]


@torch.no_grad()
@pytest.mark.parametrize("family", ["bert", "gpt2", "llama"])
def test_points_of_the_encoder_are_read_under_the_same_names(family):
    model, texts = open_model(classifier(family)), text_models.texts((9, 5))
    plain = model.module(**texts)
    logits, cache = model.run_with_cache(texts)
    assert torch.equal(plain, logits)
    assert cache["blocks.1.attn.hook_pattern"].shape == (2, 4, 9, 9)
    assert (model.num_classes, model.layout.blocks) == (3, 2)
    own = open_model(model.module.encoder).run_with_cache(texts, ["blocks.1.hook_resid_post"])[1]
    assert torch.equal(own["blocks.1.hook_resid_post"], cache["blocks.1.hook_resid_post"])


@torch.no_grad()
def test_class_space_is_what_a_token_alone_would_be_answered():
    model = open_model(classifier("gpt2"))
    texts = text_models.texts((7,))
    logits, cache = model.run_with_cache(texts, ["blocks.1.hook_resid_post"])
    torch.testing.assert_close(model.to_class_space(cache["blocks.1.hook_resid_post"])[:, -1], logits)
    mean = open_model(classifier("bert", "mean"))
    logits, cache = mean.run_with_cache(texts, ["blocks.1.hook_resid_post"])
    torch.testing.assert_close(mean.to_class_space(cache["blocks.1.hook_resid_post"]).mean(1), logits)


@torch.no_grad()
@pytest.mark.parametrize("family", BERTS)
def test_softmax_in_an_encoder_is_what_it_had_and_keeps_its_points(family):
    model, texts = open_model(classifier(family)), text_models.texts((9, 5))
    before, cache = model.run_with_cache(texts, ["blocks.*.attn.hook_pattern"])
    convert(model, "softmax")
    after, again = model.run_with_cache(texts, ["blocks.*.attn.hook_pattern"])
    torch.testing.assert_close(after, before, rtol=1e-5, atol=1e-6)
    valid = texts["attention_mask"].bool()
    for name, pattern in cache.items():
        torch.testing.assert_close(again[name].transpose(1, 2)[valid], pattern.transpose(1, 2)[valid])
    assert describe_attention(model) == [{"name": "softmax", "layers": "0-1"}]


@torch.no_grad()
@pytest.mark.parametrize("symmetric", [True, False])
def test_rpc_in_an_encoder_is_the_explicit_one_text_by_text(symmetric):
    module = classifier("bert").double()
    texts = text_models.texts((9, 5))
    model = open_model(module)
    _, before = model.run_with_cache(texts, ["blocks.0.attn.hook_[qkv]"])
    convert(model, "rpc", iterations=2, lambd=0.3, variant="paper", symmetric=symmetric)
    _, cache = model.run_with_cache(texts, ["blocks.0.attn.hook_z"])
    assert (model.module.encoder.encoder.layer[0].attention.self.q_proj is None) == symmetric
    for row, length in enumerate((9, 5)):
        q, k, v = (before[f"blocks.0.attn.hook_{x}"][row : row + 1, :, :length] for x in "qkv")
        settings = {"iterations": 2, "lambd": 0.3, "variant": "paper"}
        expected = explicit_rpc(k, v, None if symmetric else q, **settings)
        torch.testing.assert_close(cache["blocks.0.attn.hook_z"][row : row + 1, :, :length], expected)
        assert not torch.allclose(expected, explicit_softmax(k if symmetric else q, k, v))


def test_the_published_variant_refuses_padding_and_other_encoders_say_that_they_are_not_known():
    model = open_model(classifier("bert"))
    convert(model, "rpc", iterations=2)
    with pytest.raises(VitscopeError, match="variant='paper' or 'exact'"):
        model(text_models.texts((9, 5)))
    with pytest.raises(UnsupportedModelError, match=r"cannot be converted.*BERT and its kin"):
        convert(open_model(classifier("modernbert")), "symmetric")


@pytest.mark.parametrize("family", ["bert", "gpt2", "llama", "modernbert"])
def test_an_encoder_is_built_again_from_its_json(family):
    module = encoder_of(text_models.build(family))
    again = build_encoder(encoder_json(module))
    assert type(again) is type(module)
    shapes = {name: value.shape for name, value in module.state_dict().items()}
    assert {name: value.shape for name, value in again.state_dict().items()} == shapes


def test_an_own_language_model_is_an_encoder_without_its_words():
    told = encoder_json(
        None, "lm-small", {"num_classes": 30, "context": 8, "depth": 1, "embed_dim": 16, "num_heads": 2}
    )
    model = open_model(NAME, "random", encoder=told, num_classes=2)
    assert model.module.pool == "last"
    assert model.layout.causal
    assert model(torch.randint(0, 30, (3, 8))).shape == (3, 2)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"encoder": "MiniLM"}, "no configuration in JSON"),
        ({"encoder": "{"}, "no configuration in JSON"),
        ({"encoder": '{"model_type": "t5"}'}, "'t5' is not supported"),
        ({"encoder": '{"model_type": "bert"}', "pool": "middle"}, "expected 'first', 'mean' or 'last'"),
        ({"encoder": '{"name": "lm-small"}', "pool": "first"}, "sees nothing but itself"),
        ({"encoder": '{"name": "lm-small", "depth": 0}'}, "expected at least 1"),
    ],
)
def test_what_cannot_be_an_encoder_is_refused(options, words):
    with pytest.raises(VitscopeError, match=words):
        open_model(NAME, "random", **options)
