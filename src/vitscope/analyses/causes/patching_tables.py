"""From the sums of `causes.patching` to its tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pandas as pd
from torch import Tensor

from vitscope.analyses.causes.components import KINDS
from vitscope.statistics.clusters import over_clusters
from vitscope.statistics.ranks import ranks_of_sums

if TYPE_CHECKING:
    from vitscope.analyses.causes.patching import Patching

COUNTS = ("items", "clean_wrong", "made", "agree_already", "used")  # made: of the items that are right
VALUES = ("share", "decisions", "null_share", "null_decisions")
COLUMNS = tuple(f"{value}_{end}" for value in VALUES for end in ("low", "high"))  # one pair alone has no interval


def patching_tables(study: Patching) -> dict[str, pd.DataFrame]:
    """What was exchanged, token by token, from head to head; how estimates agree; how many pairs there were."""
    tables: dict[str, list[dict[str, Any]]] = {"causes_patching": [], "causes_patching_tokens": []}
    for key, names in _runs(study):
        for e, part in enumerate(study.components):
            n = study.sums["n"][key[0]][:, e]
            if n.sum():
                found = names | part.row(study.layout) | _row(study, key, e, n)
                tables["causes_patching_tokens" if part.placed else "causes_patching"].append(found)
    tables["causes_patching_paths"] = [*_paths(study)]
    tables["causes_patching_agreement"] = [*_agreement(study)]
    tables["causes_patching_pairs"] = [*_counts(study)]
    return {name: pd.DataFrame(rows) for name, rows in tables.items() if rows}


def _runs(study: Patching) -> Iterator[tuple[tuple[int, int], dict[str, Any]]]:
    for p, pairs in enumerate(study.pairs):
        for d, direction in enumerate(study.directions):
            yield (p, d), {"pairs": pairs, "direction": direction}


def _row(study: Patching, key: tuple[int, int], e: int, n: Tensor) -> dict[str, Any]:
    total, row = study.sums["total"][key[0]][:, e], dict[str, Any]()
    for front in ("", "null_") if study.null else ("",):
        moved, decided = (study.sums[f"{front}{name}"][key][:, e] for name in ("moved", "decided"))
        row |= _shares(front, moved, decided, total, n)
    if study.gradient:
        row["estimate"] = float(study.sums["estimate"][key][:, e].sum() / total.sum())
    return row | {"n_pairs": int(n.sum())}


def _shares(front: str, moved: Tensor, decided: Tensor, total: Tensor, n: Tensor) -> dict[str, float]:
    """Of the logit difference, and of the decisions in per cent, each with its interval."""
    share, decisions = over_clusters(moved, total), over_clusters(decided, n, "fraction")
    assert share is not None
    assert decisions is not None
    return share.columns(f"{front}share") | decisions.columns(f"{front}decisions", 100)


def _paths(study: Patching) -> Iterator[dict[str, Any]]:
    for key, names in _runs(study):
        total, n = (study.sums[f"path_{name}"][key[0]] for name in ("total", "n"))
        for w, way in enumerate(study.ways if n.sum() else ()):
            moved, decided = (study.sums[f"path_{name}"][key][:, w] for name in ("moved", "decided"))
            what = {"sender": way.sender.name, "receiver": way.receiver.name, "through": way.through}
            yield names | what | _shares("", moved, decided, total, n) | {"n_pairs": int(n.sum())}


def _agreement(study: Patching) -> Iterator[dict[str, Any]]:
    """Rank correlation of estimates with exact patches: mean over pairs, and that of the means over pairs."""
    for key, names in _runs(study) if study.gradient else ():
        for k, kind in enumerate(KINDS):
            sums, counts = (study.sums[name][key][k] for name in ("agree", "n_agree"))
            mean = over_clusters(sums, counts, "change")  # it lies in [-1, 1]
            if mean is None:
                continue
            there = study.sums["n"][key[0]].sum(0) > 0
            mine = [e for e, part in enumerate(study.components) if part.kind == kind and there[e]]
            used = counts > 0
            total = study.sums["total"][key[0]][used][:, mine]
            exact, guess = (study.sums[name][key][used][:, mine] for name in ("moved", "estimate"))
            whole = ranks_of_sums(exact, guess, total, study.setting.seed)
            row = {"kind": kind, "components": len(mine), **mean.columns("rank_correlation")}
            row |= {f"of_means{end}": value for end, value in zip(("", "_low", "_high"), whole)}
            yield names | row | {"n_pairs": int(counts.sum())}


def _counts(study: Patching) -> Iterator[dict[str, Any]]:
    for p, pairs in enumerate(study.pairs):
        counts = [int(count) for count in study.sums["counts"][:, p]]
        if counts[0]:
            yield {"pairs": pairs} | dict(zip(COUNTS, counts))
