"""Tables of the memories that come from a few counts, or from the weights alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope.analyses.class_space.memories import class_value_agreement
from vitscope.analyses.class_space.memory_tests import outcome_test
from vitscope.statistics.permutation import holm


def outcome_table(counts: Mapping[tuple[int, str], tuple[int, int, int, int]], published: bool) -> pd.DataFrame | None:
    """Right against wrong from (right_hits, right, wrong_hits, wrong) of each block and layer; Holm within a layer.

    None where no image is right, or none wrong: there is nothing to compare.
    """
    rows: list[dict[str, object]] = []
    for (block, layer), (right_hits, right, wrong_hits, wrong) in counts.items():
        if not (right and wrong):
            continue
        found = outcome_test(right_hits, right, wrong_hits, wrong)
        row: dict[str, object] = {"block": block, "layer": layer, "difference": 100 * found.difference}
        row |= {"low": 100 * found.low, "high": 100 * found.high, "p": found.p}
        row |= {"p_published": found.p_published} if published else {}
        rows.append(row | {"n_right": right, "n_wrong": wrong})
    if not rows:
        return None
    table = pd.DataFrame(rows)
    place = int(table.columns.get_loc("p")) + 1  # type: ignore[arg-type]
    table.insert(place, "p_holm", table.groupby("layer")["p"].transform(lambda p: holm(p.tolist())))
    return table


def memory_names(
    block: int, layer: str, directions: Tensor, values: Tensor, name: Callable[[int], str]
) -> dict[str, object]:
    """Columns of one layer: for each memory the class with the largest logit e_c . v_m, its name, logit and cosine.

    Directions (K, C), value vectors (C, M). The class is that of `memory_classes`.
    """
    logits = directions @ values  # (K, M)
    top = logits.max(0)
    cosine = class_value_agreement(directions, values).gather(0, top.indices[None].cpu())[0]
    classes = top.indices.tolist()
    return {
        "block": block,
        "layer": layer,
        "memory": np.arange(len(classes)),
        "class": classes,
        "class_name": [name(c) for c in classes],
        "logit": top.values.double().cpu().numpy(),
        "cosine": cosine.double().numpy(),
    }


def class_names(numbers: int, *candidates: object) -> Callable[[int], str]:
    """How classes are called: by the first list that has a name for each, else by their numbers."""
    for names in candidates:
        if isinstance(names, list | tuple) and len(names) == numbers:
            return lambda number: str(names[number])
    return str
