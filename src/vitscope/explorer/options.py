"""What `vitscope explore` is told: models, data, and who may look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from vitscope.analyses.options import ImageOptions, ModelOptions, Typed
from vitscope.analyses.request import Request
from vitscope.errors import VitscopeError
from vitscope.options import check_fields

if TYPE_CHECKING:
    from vitscope.data import ImageData
    from vitscope.models import Model


class _Opening(Request):
    """Opens models and data as every other command does; data may be absent, since pictures can be dropped."""

    needs_data = False


@dataclass(frozen=True)
class ExploreOptions(ImageOptions, ModelOptions):
    """Open one or more models in the browser: look at every block, change it, attack it, take the code with you."""

    seed: int = 0  # of random weights and of the choice of items
    host: str = "127.0.0.1"  # who may connect: this machine; another address lets others in, who have the token
    port: int = 0  # 0: any free one
    browser: bool = True  # open the page in the browser
    frame: Annotated[str | None, Typed("ORIGIN")] = None  # may show the page in a frame, e.g. http://localhost:8888
    out: Annotated[str, Typed("DIR")] = "runs/explore"  # where "Save" writes run folders

    def __post_init__(self) -> None:
        check_fields(self)
        if not 0 <= self.port <= 65535:
            raise VitscopeError(f"port={self.port}: expected a number from 0 (any free one) to 65535.")
        if self.frame is not None:
            from vitscope.explorer.safety import check_origin

            check_origin(self.frame)

    def _request(self) -> _Opening:
        shared = [f.name for group in (ImageOptions, ModelOptions) for f in fields(group)]
        return _Opening(**{name: getattr(self, name) for name in shared}, seed=self.seed)

    def check(self) -> None:
        """Refuse misspelt names and paths at once, without PyTorch."""
        self._request().check()

    def open(self, models: Any = None) -> list[Model]:
        """The models that are meant: those given, or those named."""
        request = self._request()
        return [*request.opened(models, self.seed)] if models else [*request.open()]

    def load(self, models: Sequence[Model], data: Any = None) -> ImageData | None:
        """The data that are meant, or None."""
        if models[0].row.text and (data is not None or self.data):
            raise VitscopeError(f"{models[0].name} reads sentences, which are typed on the page: leave the data out.")
        if isinstance(data, str | Path):
            return replace(self, data=str(data)).load(models)
        return self._request().load(data) if data is not None or self.data else None
