"""The class-space lens: where does a ViT know the class? See docs/class_space.md."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.analyses.class_space.composition import Composition as Composition
    from vitscope.analyses.class_space.composition import exclusive_shares as exclusive_shares
    from vitscope.analyses.class_space.composition import match_code as match_code
    from vitscope.analyses.class_space.identifiability import Identifiability as Identifiability
    from vitscope.analyses.class_space.memory_analysis import Memories as Memories
    from vitscope.analyses.class_space.projection import Projector as Projector
    from vitscope.analyses.class_space.projection import Reading as Reading
    from vitscope.analyses.class_space.ranks import true_rank as true_rank

__getattr__, __dir__, __all__ = lazy(__name__)
