"""A request to attack, as `vitscope attack` and `vitscope rerun` carry it out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from vitscope.analyses.request import AnalyzeOptions
from vitscope.registry import ATTACKS
from vitscope.robustness.epsilons import parse_epsilons

if TYPE_CHECKING:
    from vitscope.data import ImageData
    from vitscope.models import Model
    from vitscope.runs import Run


@dataclass(frozen=True)
class AttackRequest(AnalyzeOptions):
    """An `analyze` whose only analysis is `attack`: it refuses earlier, and knows models that normalise inside."""

    def check(self) -> None:
        options = self._options()
        for name in options.get("attacks", ()):
            ATTACKS.check_name(name)
        parse_epsilons(options.get("eps", "1/255"), options.get("norm", "linf"))
        super().check()

    def _options(self) -> dict[str, Any]:
        return {path.removeprefix("attack."): value for path, value in self.set.items()}

    def run(
        self, data: ImageData | None = None, models: Sequence[Model] = (), command: Sequence[str] | None = None
    ) -> Sequence[Run]:
        if data is None or not models:
            self.check()
        from vitscope.robustness.attack_study import AttackStudy
        from vitscope.robustness.attacking import check_labels
        from vitscope.robustness.target import normalised_where

        options = self._options()
        AttackStudy(**options)  # refuses what cannot be, before a model or a picture is opened
        data = data or self.load()
        check_labels(data)
        opened = list(models) or self.open()
        return super().run(data, [normalised_where(m, options["normalise"])[0] for m in opened], command)
