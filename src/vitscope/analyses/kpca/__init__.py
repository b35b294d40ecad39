"""Kernel-PCA lens: is attention what the theory says it is? `docs/kpca.md` has the mathematics and the verdicts."""

from vitscope.analyses.kpca.construct import construct, constructed_values, theoretical_values
from vitscope.analyses.kpca.gram import Gram, centre, centred_gram, log_k_phi, standardise
from vitscope.analyses.kpca.keygram import KeyGram

__all__ = [
    "Gram",
    "KeyGram",
    "centre",
    "centred_gram",
    "construct",
    "constructed_values",
    "log_k_phi",
    "standardise",
    "theoretical_values",
]
