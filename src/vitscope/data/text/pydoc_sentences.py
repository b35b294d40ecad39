"""Sentences of Python's help topics, each with the topic that it is from: labelled text that is always there."""

from __future__ import annotations

import re
from collections import Counter

from vitscope.data.registry import register_dataset
from vitscope.data.selection import proportional_order
from vitscope.data.splits import ALL, HELD_OUT
from vitscope.data.text.pydoc_topics import pydoc
from vitscope.data.text.source import TextSource
from vitscope.data.text.texts import Texts, listed

TOPICS = 8  # those with the most paragraphs of their own
SHORTEST, LONGEST = 40, 400  # characters of a sentence
_PROSE = re.compile(r"[A-Z\"“][^ ]*(?: [^ =]+){5}")  # not a grammar, a table or a program
_END = re.compile(r"(?<=[.:!?]) (?=[A-Z\"“])")


@register_dataset("pydoc-sentences", splits=("train", "test", ALL))
def pydoc_sentences(split: str) -> TextSource:
    """Which of eight topics is a sentence from? A fifth of the paragraphs of each topic is held out, whole."""
    topics = pydoc(ALL)
    owned = own_paragraphs(topics.documents)
    chosen = sorted(name for name, _ in Counter({n: len(p) for n, p in owned.items()}).most_common(TOPICS))
    places = [(name, i) for name in chosen for i in range(len(owned[name]))]
    order = proportional_order([f"{n}:{i}" for n, i in places], [chosen.index(n) for n, _ in places], "split")
    held_out = round(HELD_OUT * len(order))
    mine = sorted({"test": order[:held_out], "train": order[held_out:], ALL: order}[split])
    found = [(*places[i], j, text) for i in mine for j, text in enumerate(owned[places[i][0]][places[i][1]])]
    names = [f"{topic}:{i + 1}.{j + 1}" for topic, i, j, _ in found]
    documents, content = listed([text for *_, text in found], names, "pydoc-sentences")
    return TextSource(documents, content, labels=[topic for topic, *_ in found], holds=split, notes=topics.notes)


def own_paragraphs(topics: Texts) -> dict[str, list[list[str]]]:
    """Paragraphs, as their sentences, by topic. A sentence of several topics belongs to the shortest of them."""
    texts = {topics.name(i): topics[i] for i in range(len(topics))}
    seen: set[str] = set()  # sentences
    owned: dict[str, list[list[str]]] = {}
    for name in sorted(texts, key=lambda name: (len(texts[name]), name)):
        owned[name] = []
        for piece in re.split(r"\n\s*\n", texts[name]):
            found = [s for s in dict.fromkeys(sentences(" ".join(piece.split()))) if s not in seen]
            if found:
                owned[name].append(found)
            seen.update(found)
    return owned


def sentences(paragraph: str) -> list[str]:
    """Those that are prose, and neither very short nor very long."""
    found = (s for s in _END.split(paragraph) if SHORTEST <= len(s) <= LONGEST and " | " not in s)
    return [s for s in found if _PROSE.match(s)]
