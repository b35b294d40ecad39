"""The explorer: open a model in the browser, point at a token, change it, attack it, take the code with you."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.explorer.opening import Explorer as Explorer
    from vitscope.explorer.opening import explore as explore
    from vitscope.explorer.options import ExploreOptions as ExploreOptions

__getattr__, __dir__, __all__ = lazy(__name__)
