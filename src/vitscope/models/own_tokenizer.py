"""A tokenizer of the `tokenizers` package as the preprocessing of a language model of our own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from vitscope.errors import VitscopeError, first_line
from vitscope.models.text import import_transformers
from vitscope.models.text_preprocess import TextPreprocess

FILE = "tokenizer.json"  # beside the weights of a run
_OF_BERT = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]"}  # where they stand apart from all words
_ENDS = ("<eos>", "</s>", "<|endoftext|>")  # as tokenizers write what ends a text


def preprocess_of(tokenizer: Any, length: int, source: str) -> TextPreprocess:
    """For a model that takes `length` tokens."""
    transformers = import_transformers()
    known = tokenizer.get_vocab()
    special = {"eos_token": next((name for name in _ENDS if name in known), None)}
    special["unk_token"] = "<unk>" if "<unk>" in known else None
    apart = {token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special}
    special |= {name: token for name, token in _OF_BERT.items() if token in apart}
    given = {name: token for name, token in special.items() if token is not None}
    return TextPreprocess(transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, **given), length, source)


def open_tokenizer(file: Path, length: int, source: str) -> TextPreprocess:
    """What a run keeps beside its weights."""
    import_transformers()
    from tokenizers import Tokenizer

    try:
        return preprocess_of(Tokenizer.from_file(str(file)), length, source)
    except Exception as error:  # the package raises bare exceptions
        raise VitscopeError(
            f"{file} is missing or damaged, and the model reads text by it ({first_line(error)})."
        ) from error


def tokenizer_json(preprocess: TextPreprocess) -> str:
    """The tokenizer as a file has it."""
    return preprocess.tokenizer.backend_tokenizer.to_str(pretty=True) + "\n"


def tokenizer_hash(preprocess: TextPreprocess) -> str:
    return hashlib.sha256(tokenizer_json(preprocess).encode()).hexdigest()[:32]
