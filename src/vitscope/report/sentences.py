"""The gallery of texts: pick a sentence, see its tokens coloured by a map, block by block.

Maps come from tables `maps_<name>` (image, map, block, row = 0, col = token, value), words from the table `texts`
(image, token, word, target_word) and first guesses from `vocabulary_topk`. A value travels as one byte. All blocks and
models share the colour scale of a text's map. Models cut a text into tokens of their own: words belong to a model.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from vitscope.report.gallery import encode_maps, map_tables
from vitscope.report.panel import Runs
from vitscope.runs import Run

Span = tuple[float, float]
BEGINNING = 60  # characters of a text that name it


def sentences_data(runs: Runs, limit: int = 12) -> dict[str, Any] | None:
    """What sentences.js draws: {'texts': [...], 'rows': [...], 'guessed': [...]}, or None where no run has texts."""
    texts: dict[str, dict[str, Any]] = {}
    maps: list[tuple[str, str, dict[int, pd.DataFrame]]] = []  # model, kind of map, {place in texts: cells}
    guessed: dict[str, int] = {}  # words, each once
    for label, run in runs.items():
        listed, words = run.table("images"), run.table("texts")
        if listed is None or words is None:
            continue
        places: dict[int, int] = {}
        for number, path in zip(listed["image"].tolist(), map(str, listed["path"])):
            if path not in texts and len(texts) >= limit:
                continue
            places[number] = list(texts).index(path) if path in texts else len(texts)
            own = words[words["image"] == number].sort_values("token")
            text = texts.setdefault(path, {"name": path, "words": {}, "targets": {}, "guesses": {}})
            text["words"][label] = list(map(str, own["word"]))
            text["targets"][label] = list(map(str, own["target_word"]))
            text.setdefault("beginning", "".join(text["words"][label]).strip()[:BEGINNING])
        _add_guesses(run.table("vocabulary_topk"), label, places, list(texts.values()), guessed)
        maps += [(label, kind, cells) for kind, cells in _maps(run, places)]
    if not texts:
        return None
    return {"texts": list(texts.values()), "rows": _rows(maps), "guessed": list(guessed), "several": len(runs) > 1}


def _add_guesses(
    table: pd.DataFrame | None,
    label: str,
    places: Mapping[int, int],
    texts: list[dict[str, Any]],
    guessed: dict[str, int],
) -> None:
    """The first guess at each token, by block: numbers of words in `guessed`."""
    if table is None:
        return
    best = table[(table["place"] == 0) & table["image"].isin(list(places))].sort_values("token")
    for number, place in places.items():
        of_text = best[best["image"] == number]
        for block in of_text["block"].unique().tolist():
            words = of_text[of_text["block"] == block]["guess"]
            numbers = [guessed.setdefault(str(word), len(guessed)) for word in words]
            texts[place]["guesses"].setdefault(label, {})[int(block)] = numbers


def _maps(run: Run, places: Mapping[int, int]) -> list[tuple[str, dict[int, pd.DataFrame]]]:
    """(kind of map, {place of the text: its cells}) of one run."""
    found = []
    for table in map_tables(run):
        of_texts = table[(table["row"] == 0) & table["image"].isin(list(places))]
        for kind in of_texts["map"].unique().tolist():
            cells = of_texts[of_texts["map"] == kind]
            shown = cells["image"].unique().tolist()
            found.append((str(kind), {places[number]: cells[cells["image"] == number] for number in shown}))
    return found


def _rows(maps: list[tuple[str, str, dict[int, pd.DataFrame]]]) -> list[dict[str, Any]]:
    spans: dict[tuple[str, int], Span] = {}
    for _, kind, texts in maps:
        for place, cells in texts.items():
            low, high = spans.get((kind, place), (0.0, 0.0))
            spans[kind, place] = min(low, float(cells["value"].min())), max(high, float(cells["value"].max()))
    signed = {kind: any(low < 0 < high for (k, _), (low, high) in spans.items() if k == kind) for _, kind, _ in maps}
    return [
        {
            "model": model,
            "map": kind,
            "signed": signed[kind],
            "texts": {place: _encoded(cells, spans[kind, place], signed[kind]) for place, cells in texts.items()},
        }
        for model, kind, texts in maps
    ]


def _encoded(cells: pd.DataFrame, span: Span, signed: bool) -> dict[str, Any]:
    """`encode_maps` with the tokens that have no value; zero is one end of the scale, or the middle of a signed one."""
    largest = max(-span[0], span[1])
    low, high = (-largest, largest) if signed else span
    found = encode_maps(cells, low, high)
    return found | {"blank": sorted(set(range(found["w"])) - set(cells["col"].tolist()))}
