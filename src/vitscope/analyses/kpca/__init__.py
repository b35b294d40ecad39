"""Kernel-PCA lens: is attention what the theory says it is? `docs/kpca.md` has the mathematics and the verdicts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.analyses.kpca.construction import construct as construct
    from vitscope.analyses.kpca.construction import constructed_values as constructed_values
    from vitscope.analyses.kpca.construction import theoretical_values as theoretical_values
    from vitscope.analyses.kpca.gram import Gram as Gram
    from vitscope.analyses.kpca.gram import centre as centre
    from vitscope.analyses.kpca.gram import centred_gram as centred_gram
    from vitscope.analyses.kpca.gram import log_k_phi as log_k_phi
    from vitscope.analyses.kpca.gram import standardise as standardise
    from vitscope.analyses.kpca.keygram import KeyGram as KeyGram

__getattr__, __dir__, __all__ = lazy(__name__)
