"""Words as published, characters, byte pairs, and files."""

from __future__ import annotations

from pathlib import Path

import pytest

from vitscope.data.text.vocabulary import build_vocabulary, check_vocabulary
from vitscope.errors import DataError, VitscopeError

pytest.importorskip("transformers")

from vitscope.models.own_tokenizer import open_tokenizer, preprocess_of, tokenizer_json

TEXTS = ["the cat sat\n\non the mat\n", "the end \n"]


def test_words_are_split_at_white_space_and_every_line_ends_with_eos():
    tokenizer = build_vocabulary("words", TEXTS)
    assert tokenizer.encode("the  Cat sat\n\non\n").tokens == ["the", "<unk>", "sat", "<eos>", "<eos>", "on", "<eos>"]
    assert tokenizer.token_to_id("<eos>") == 0
    assert tokenizer.token_to_id("the") == 1  # the most frequent word
    assert tokenizer.get_vocab_size() == len({*" ".join(TEXTS).split()}) + 2


def test_an_unknown_word_of_the_data_is_a_word_and_not_added_twice():
    assert build_vocabulary("words", ["a <unk> b <unk> <eos>\n"]).get_vocab() == {
        "<eos>": 0,
        "<unk>": 1,
        "a": 2,
        "b": 3,
    }
    assert build_vocabulary("words:1", TEXTS).encode("the cat").tokens == ["the", "<unk>"]


def test_wikitext_has_the_published_number_of_tokens(shared):
    for part, expected in (("valid", 217_646), ("test", 245_569)):
        text = (shared / "data/wikitext-2" / f"wiki.{part}.tokens").read_text(encoding="utf-8")
        assert len(build_vocabulary("words", [text]).encode(text)) == expected


@pytest.mark.parametrize("how", ["characters", "bpe:300"])
def test_characters_and_byte_pairs_give_the_text_back(how):
    tokenizer = build_vocabulary(how, TEXTS)
    text = "the mat\n\n on the cat"
    assert tokenizer.decode(tokenizer.encode(text).ids) == text
    if how == "characters":
        assert tokenizer.encode("cat\n").tokens == list("cat\n")
        assert tokenizer.encode("é").tokens == ["<unk>"]
    else:
        assert tokenizer.decode(tokenizer.encode("é").ids) == "é"


@pytest.mark.parametrize("how", ["words", "characters", "bpe:300"])
def test_the_same_texts_give_the_same_vocabulary_which_a_file_keeps(how, tmp_path: Path):
    first, second = (preprocess_of(build_vocabulary(how, TEXTS), 16, "test") for _ in range(2))
    assert tokenizer_json(first) == tokenizer_json(second)
    file = tmp_path / "tokenizer.json"
    file.write_text(tokenizer_json(first))
    again = open_tokenizer(file, 16, "test")
    text = "the cat sat\n\non the dog\n"
    assert again.encode(text) == first.encode(text)
    assert tokenizer_json(preprocess_of(build_vocabulary(str(file), []), 16, "test")) == tokenizer_json(first)
    assert first.rows == len(first.tokenizer)


def test_line_ends_are_line_ends_again():
    preprocess = preprocess_of(build_vocabulary("words", TEXTS), 16, "test")
    assert preprocess.decode(preprocess.encode("the cat\n\nthe end\n")) == "the cat\n\nthe end\n"
    assert preprocess.words(preprocess.encode("cat\n")) == ["cat", "<eos>"]
    assert preprocess.separators == (0,)


def test_what_a_file_puts_around_a_text_is_not_learnt_and_so_not_put_there(tmp_path: Path):
    from tokenizers.processors import TemplateProcessing

    tokenizer = build_vocabulary("words", [*TEXTS, "[CLS] [SEP]"])
    ends = [(name, tokenizer.token_to_id(name)) for name in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    assert tokenizer.encode("the cat").tokens == ["[CLS]", "the", "cat", "[SEP]"]
    preprocess = preprocess_of(build_vocabulary(str(tmp_path / "tokenizer.json"), []), 16, "test")
    assert preprocess.words(preprocess.encode("the cat")) == ["the", "cat"]


@pytest.mark.parametrize("how", ["word", "bpe", "bpe:100", "words:0", "no/such/file.json"])
def test_a_vocabulary_that_does_not_exist_is_refused(how):
    with pytest.raises(DataError):
        check_vocabulary(how)


def test_a_file_that_is_no_tokenizer_is_refused(tmp_path: Path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(DataError, match=r"no tokenizer\.json"):
        build_vocabulary(str(tmp_path / "tokenizer.json"), [])
    with pytest.raises(VitscopeError, match="missing or damaged"):
        open_tokenizer(tmp_path / "other.json", 8, "")
