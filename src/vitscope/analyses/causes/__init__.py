"""Who did it? Attribution, ablation and patching. See docs/causes.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.analyses.causes.attribution import Attribution as Attribution
    from vitscope.analyses.causes.pairs import Pairs as Pairs
    from vitscope.analyses.causes.pairs import register_pairs as register_pairs
    from vitscope.analyses.causes.prefix import Prefix as Prefix

__getattr__, __dir__, __all__ = lazy(__name__)
