"""The numbers of a run under the names that people know: `top1`, `pgd@1/255`, `fog@3`, each with its interval.

Names are those of the summary, which every command prints (`accuracy.top1`), and those of rows that the summary leaves
out (`evaluation.fog@3`). Intervals are read where they were written, in the tables; nothing is computed again. Any
other number of a table has an address: `TABLE.COLUMN[KEY=VALUE,...]`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitscope.runs import Run

if TYPE_CHECKING:
    import pandas as pd


Row = Mapping[str, Any]


@dataclass(frozen=True)
class Measured:
    """One number, its 95 % interval where there is one, and what must be the same in two rows to compare them."""

    value: float
    low: float = math.nan
    high: float = math.nan
    unit: str = ""
    n: int = 0  # images, or documents, behind it
    interval: str = ""  # what kind of interval: 'Wilson'
    how: str = ""  # the protocol: 'linf, steps 20; pixels in [0, 1], true labels'
    log: bool = False  # of what multiplies, such as a perplexity, the mean is the geometric one

    @property
    def has_interval(self) -> bool:
        return math.isfinite(self.low) and math.isfinite(self.high)


def measured(run: Run) -> dict[str, Measured]:
    """{full name: number} of one run, or of several runs of one model read as one."""
    found = {
        name: Measured(float(f["value"]), unit=f["unit"], n=int(f["n"]), log=name.endswith("perplexity"))
        for name, f in run.summary.items()
    }
    for name, (needs, read) in READERS.items():
        table = run.table(name)
        if table is not None and set(needs) <= set(table.columns):
            for row in table.to_dict("records"):
                found |= {full: m for full, m in read({str(k): v for k, v in row.items()}) if math.isfinite(m.value)}
    return found


def in_table(table: pd.DataFrame, rows: pd.DataFrame, figure: str) -> Measured:
    """The number in the one row of `rows`, with the interval that the table has for it."""
    from vitscope.runs.tidy import COUNTS, shape_of

    row = {str(k): v for k, v in rows.iloc[0].items()}
    ends = shape_of(table).interval_of(figure, list(map(str, table.columns)))
    unit = "%" if figure in ("rate", "top1", "top5") else str(row.get("unit", row.get("unit_of_value", "")))
    n = next((int(row[c]) for c in COUNTS if c in row), 0)
    low, high = (float(row[end]) for end in ends) if ends else (math.nan, math.nan)
    return Measured(float(row[figure]), low, high, unit, n, "as its table has it" if ends else "")


def _accuracy(row: Row) -> Iterator[tuple[str, Measured]]:
    yield f"accuracy.{row['metric']}", _plain(row, row["unit"], str(row["interval"]))


def _perplexity(row: Row) -> Iterator[tuple[str, Measured]]:
    cut = ", ".join(f"{key} {row[key]}" for key in ("unit", "context", "stride", "bos") if key in row)
    log = row["metric"] == "perplexity"
    if "condition" not in row:
        yield f"perplexity.{row['metric']}", _plain(row, row["unit_of_value"], "over documents", cut, log)
        return
    name = row["condition"] if row["over"] == "all" else f"{row['condition']}_{row['over']}"
    name += "" if log else f"_{row['metric']}"
    yield f"swapped.perplexity.{name}", _plain(row, row["unit_of_value"], "over documents", cut, log)


def _segmentation(row: Row) -> Iterator[tuple[str, Measured]]:
    name, metric = f"{row['corruption']}@{row['severity']}", str(row["metric"])
    name = metric if row["severity"] == 0 else name if metric == "mean_iou" else f"{name}_{metric}"
    yield f"segmentation.{name}", _plain(row, row["unit"], "bootstrap over images")


def _segmentation_attack(row: Row) -> Iterator[tuple[str, Measured]]:
    name = f"segmentation.attack.{row['attack']}@{row['eps']}"
    name += "" if row["metric"] == "mean_iou" else f"_{row['metric']}"
    yield name, _plain(row, row["unit"], "bootstrap over images", f"{row['norm']}; {row['protocol']}")


def _attack(row: Row) -> Iterator[tuple[str, Measured]]:
    at, cumulative = f"{row['attack']}@{row['eps']}", math.isnan(row["accuracy"])
    how = f"{row['norm']}, {row['options']}; {row['protocol']}"
    column = "accuracy_cumulative" if cumulative else "accuracy"
    yield f"attack.{at}", _share(row, column, row["n_images"], "Wilson", how + ("; cumulative" if cumulative else ""))
    yield "attack.clean", _share(row, "clean", row["n_images"], "Wilson")
    if "top5" in row:
        yield f"attack.{row['attack']}_top5@{row['eps']}", _share(row, "top5", row["n_images"], "Wilson", how)


def _evaluation(row: Row) -> Iterator[tuple[str, Measured]]:
    if row["images"] != "all":
        return
    if row["corruption"] == "none":
        name = row["set"] if str(row["classes"]).startswith("all") else f"{row['set']}_own_classes"
    else:
        name = f"{_before(row)}{row['corruption']}@{row['severity']}"
    yield f"evaluation.{name}", _share(row, "top1", row["n"], "Wilson", str(row["preparation"]))
    for figure in ("top5", "ece", "rms", "aurra") if row["corruption"] == "none" else ():
        yield f"evaluation.{name}_{figure}", Measured(_number(row[figure]), unit="%", n=int(row["n"]))


def _corruption(row: Row) -> Iterator[tuple[str, Measured]]:
    name, how = f"evaluation.{_before(row)}{row['corruption']}", f"severities {row['severities']}"
    yield name, _share(row, "top1", row["n"], "over images", how)
    yield f"{name}_ce", Measured(_number(row["ce"]), unit="%", n=int(row["n"]), how=how)


def _corruptions(row: Row) -> Iterator[tuple[str, Measured]]:
    name, how = f"evaluation.{row['set']}", f"{row['corruptions']} corruptions, severities {row['severities']}"
    for figure in ("top1", "mce"):
        yield f"{name}_{figure}", _share(row, figure, row["n"], "over images", how)


def _detection(row: Row) -> Iterator[tuple[str, Measured]]:
    name = row["set"] if str(row["classes"]).startswith("all") else f"{row['set']}_own_classes"
    for figure in [key.removesuffix("_low") for key in row if key.endswith("_low")]:
        n = row["n_out"] + row["n_clean"]
        yield f"evaluation.{name}_{figure}", _share(row, figure, n, "bootstrap over images", str(row["score"]))


# table -> the columns by which it is known (a training has a table `evaluation`, too), and how a row is read
READERS: dict[str, tuple[tuple[str, ...], Callable[[Row], Iterator[tuple[str, Measured]]]]] = {
    "accuracy": (("metric", "interval"), _accuracy),
    "perplexity": (("metric", "unit_of_value"), _perplexity),
    "segmentation": (("metric", "severity"), _segmentation),
    "segmentation_attack": (("metric", "attack"), _segmentation_attack),
    "attack": (("attack", "accuracy_cumulative"), _attack),
    "evaluation": (("set", "preparation"), _evaluation),
    "corruption_error": (("set", "corruption"), _corruption),
    "corruption_mean": (("set", "corruptions"), _corruptions),
    "ood_detection": (("set", "score"), _detection),
}


def _plain(row: Row, unit: str, kind: str, how: str = "", log: bool = False) -> Measured:
    """Of a row with the columns value, low and high."""
    low, high = _number(row.get("low")), _number(row.get("high"))
    return Measured(_number(row["value"]), low, high, str(unit), int(row["n"]), kind, how, log)


def _share(row: Row, column: str, n: Any, kind: str, how: str = "") -> Measured:
    """Of a row with the columns X, X_low and X_high, in percent."""
    value, low, high = (_number(row.get(f"{column}{end}")) for end in ("", "_low", "_high"))
    return Measured(value, low, high, "%", int(n), kind, how)


def _before(row: Row) -> str:
    """The distributed pictures of ImageNet-C are told apart from those that were corrupted on the fly."""
    return "" if row["set"] == "corrupted" else f"{row['set']}_"


def _number(value: Any) -> float:
    """An empty cell is NaN, also in a column where all are empty."""
    return math.nan if value is None or value == "" else float(value)
