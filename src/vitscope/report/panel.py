"""A panel is one lens on the report page. It reads tables only: `vitscope report RUN` redraws without model or data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from vitscope.registry import PANELS
from vitscope.runs import Run

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

    from vitscope.report.card import Card

Runs = Mapping[str, Run]  # by the label of the model
Tables = Mapping[str, "pd.DataFrame"]  # of one name, by the label of the model


@dataclass(frozen=True)
class Finding:
    """One sentence with its number and, where it can be had, its interval. `interest` in [0, 1] ranks the headlines."""

    text: str
    interest: float = 0.5


@dataclass
class Panel:
    """Question, figure(s), how to read it, the table behind it, the protocol line."""

    key: str  # anchor and file name: 'attention'
    title: str  # the question: 'Where do the heads look?'
    figures: Mapping[str, Figure] = field(default_factory=dict)  # file stem -> matplotlib figure
    alt: Mapping[str, str] = field(default_factory=dict)  # file stem -> alt text
    captions: Mapping[str, str] = field(default_factory=dict)  # file stem -> what is drawn, n, what the interval is of
    reading: str = ""  # two sentences that say how to read it
    tables: Mapping[str, pd.DataFrame] = field(default_factory=dict)  # csv stem -> table shown folded
    protocol: str = ""  # variant, images, preprocessing, seed
    findings: list[Finding] = field(default_factory=list)
    write: Sequence[Callable[[], object]] = ()  # called by build_report: files beside the page (an animation, tables)
    html: str = ""  # optional trusted extra markup (a slider, a verdict table); the panel escapes what is foreign
    order: int = 50  # smaller comes first
    lens: str = ""  # what the contents call it: panels of one lens stand together there; '' for its title
    card: Card | None = None  # what the first screen says of the lens

    def __repr__(self) -> str:
        figures = f"{len(self.figures)} figure{'' if len(self.figures) == 1 else 's'}"
        return f"Panel({self.key!r}: {self.title} {figures}, {len(self.findings)} findings)"

    def _repr_html_(self) -> str:
        from vitscope.report.notebook import panel_html

        return str(panel_html(self))


PanelFunction = Callable[[Runs], "Panel | None"]


def register_panel(key: str, draws: Sequence[str] = ()) -> Callable[[PanelFunction], PanelFunction]:
    """Decorator. The function gets {model label: Run} and returns a Panel, or None where its tables are absent.

    It may live in the analysis' own file: adding an analysis with its picture touches one file. `draws` names tables
    of probes that this panel draws against the epochs, such as "probe_separation".
    """

    def register(function: PanelFunction) -> PanelFunction:
        function.draws = tuple(draws)  # type: ignore[attr-defined]
        return PANELS.add(key, function)

    return register


def drawn_probes() -> set[str]:
    """Tables of probes that have a panel of their own; `panels/probes.py` draws all others."""
    return {table for function in PANELS.load_all().values() for table in getattr(function, "draws", ())}
