"""Text that a language model draws."""

from __future__ import annotations

import pytest
import torch

from vitscope import open_model
from vitscope.data.text.vocabulary import build_vocabulary
from vitscope.errors import UnsupportedModelError, VitscopeError
from vitscope.models.generation import generate

pytest.importorskip("transformers")

from vitscope.models.own_tokenizer import preprocess_of

TEXT = "the cat sat on the mat\nthe dog sat\n"


def model(how: str = "words"):
    tokenizer = build_vocabulary(how, [TEXT])
    module = open_model("lm-small", "random", num_classes=tokenizer.get_vocab_size(), context=8, depth=1).module
    return open_model(module, tokenizer=preprocess_of(tokenizer, 8, "").tokenizer)


@pytest.mark.parametrize("how", ["words", "characters", "bpe:270"])
def test_the_same_seed_draws_the_same_text_and_another_another_one(how):
    opened = model(how)
    texts = ["".join(generate(opened, "the cat", tokens=30, temperature=1.0, seed=seed)) for seed in (0, 0, 1)]
    assert texts[0] == texts[1] != texts[2]
    assert len(texts[0]) >= 10


def test_without_temperature_the_most_likely_token_is_taken():
    opened = model("characters")
    ids = opened.preprocess.encode("the")
    for _ in range(12):  # beyond the 8 tokens that the model sees
        ids.append(int(opened(torch.tensor([ids[-8:]]))[0, -1].argmax()))
    assert "".join(generate(opened, "the", tokens=12, temperature=0)) == opened.preprocess.decode(ids)[3:]


def test_it_begins_where_there_is_no_prompt():
    assert "".join(generate(model(), tokens=5))


def test_what_cannot_go_on_is_refused():
    with pytest.raises(UnsupportedModelError, match="no causal language model"):
        generate(open_model("vit_tiny_patch16_224", "random", depth=1), "a")
    with pytest.raises(VitscopeError, match="temperature=-1"):
        generate(model(), "a", temperature=-1)
