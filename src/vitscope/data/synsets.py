"""The 1,000 classes of ImageNet: WordNet ids in the order of every ImageNet-1k head, and short names for people."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from functools import cache

NUM_CLASSES = 1000
_WORDNET_ID = re.compile(r"n\d{8}")


@cache
def wordnet_ids() -> tuple[str, ...]:
    from timm.data import ImageNetInfo

    return tuple(ImageNetInfo("imagenet-1k").label_names())


@cache
def class_names() -> tuple[str, ...]:
    """The first lemma of each class. Where two classes share it ('crane'), the WordNet id is added."""
    from timm.data import ImageNetInfo

    names = [d.split(",")[0].strip() for d in ImageNetInfo("imagenet-1k").label_descriptions()]
    count = Counter(names)
    return tuple(f"{n} ({i})" if count[n] > 1 else n for n, i in zip(names, wordnet_ids()))


def count_known(folder_names: Iterable[str]) -> int:
    """How many of the names are ids of ImageNet-1k. timm is asked only if there is a candidate."""
    candidates = [n for n in folder_names if _WORDNET_ID.fullmatch(n)]
    return len(set(candidates) & set(wordnet_ids())) if candidates else 0
