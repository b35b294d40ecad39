"""The class-space lens: where does a ViT know the class? See docs/class_space.md."""

from vitscope.analyses.class_space.composition import Composition, exclusive_shares, match_code
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.class_space.memory_analysis import Memories
from vitscope.analyses.class_space.projection import Projector, Reading
from vitscope.analyses.class_space.ranks import identifiability, true_rank

__all__ = [
    "Composition",
    "Identifiability",
    "Memories",
    "Projector",
    "Reading",
    "exclusive_shares",
    "identifiability",
    "match_code",
    "true_rank",
]
