"""Vocabularies made from texts, all of them with the `tokenizers` package: words, characters, byte pairs, or a file.

Words are as published for WikiText: split at white space, case kept, `<eos>` at every line end (blank lines too), the
most frequent first, so that an adaptive softmax finds them in its head.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from vitscope.errors import DataError, suggest

EOS, UNKNOWN = "<eos>", "<unk>"
KINDS = ("words", "characters", "bpe")
DEFAULT = "bpe:2000"
BYTES = 256  # of which pairs are made: no vocabulary of byte pairs is smaller


def check_vocabulary(how: str) -> None:
    """Refuse what is neither a kind of vocabulary nor a file."""
    kind, size = _parts(how)
    if kind not in KINDS:
        if not os.path.isfile(how):
            raise DataError(
                f"There is no vocabulary {how!r}.{suggest(kind, KINDS)} Known: words, words:20000 (the most frequent), "
                "characters, bpe:2000 (byte pairs), or a tokenizer.json."
            )
        return
    if kind == "bpe" and (size is None or size <= BYTES):
        raise DataError(f"vocabulary={how!r}: byte pairs need a number above {BYTES}, as in bpe:2000.")
    if size is not None and size < 1:
        raise DataError(f"vocabulary={how!r}: expected at least one entry, as in {kind}:2000.")


def build_vocabulary(how: str, texts: Iterable[str]) -> Any:
    """A `tokenizers.Tokenizer`. The same texts in the same order give the same one."""
    check_vocabulary(how)
    kind, size = _parts(how)
    if kind == "words":
        return _words(texts, size)
    if kind == "characters":
        return _characters(texts, size)
    return _byte_pairs(texts, int(size or 0)) if kind == "bpe" else read_tokenizer(how)


def read_tokenizer(file: str | Path) -> Any:
    """A tokenizer.json of ours or of anyone. What it puts around a text goes: streams have nothing of the kind."""
    tokenizers = import_tokenizers()
    try:
        tokenizer = tokenizers.Tokenizer.from_file(str(file))
    except Exception as error:  # the package raises bare exceptions
        raise DataError(f"{file} is no tokenizer.json: {str(error).splitlines()[0][:200]}.") from error
    if tokenizer.num_special_tokens_to_add(False):
        tokenizer.post_processor = None
    return tokenizer


def import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise DataError(
            f"Vocabularies need tokenizers, which cannot be imported ({error}): pip install 'vitscope[text]'"
        ) from error
    return tokenizers


def _parts(how: str) -> tuple[str, int | None]:
    """'bpe:2000' -> ('bpe', 2000)"""
    match = re.fullmatch(r"(\w+):(\d+)", how)
    return (match[1], int(match[2])) if match else (how, None)


def _words(texts: Iterable[str], size: int | None) -> Any:
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

    names = [EOS, *_frequent((text.split() for text in texts), {EOS}, size)]
    if UNKNOWN not in names:
        names.append(UNKNOWN)
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Replace("\n", f" {EOS} ")
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _characters(texts: Iterable[str], size: int | None) -> Any:
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

    names = [*_frequent(texts, set(), size), UNKNOWN]
    tokenizer = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.decoder = decoders.Fuse()
    return tokenizer


def _byte_pairs(texts: Iterable[str], size: int) -> Any:
    """Byte pairs over words of GPT-2's kind: nothing is unknown to them."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _frequent(pieces: Iterable[Iterable[str]], without: set[str], size: int | None) -> list[str]:
    """The most frequent first, equally frequent ones in the order in which they first come up."""
    counts: Counter[str] = Counter()
    for piece in pieces:
        counts.update(piece)
    for name in without:
        counts.pop(name, None)
    return [name for name, _ in counts.most_common(size)]
