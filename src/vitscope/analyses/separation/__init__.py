"""Separation: how far apart the classes are in every layer, and how that decays with depth and training."""

from vitscope.analyses.separation.analysis import Separation
from vitscope.analyses.separation.definition import fuzziness
from vitscope.analyses.separation.fits import Fit, best_fit, compare_fits
from vitscope.analyses.separation.pixels import pixel_fuzziness
from vitscope.analyses.separation.profile import block_fits, epoch_fits, spikes

__all__ = [
    "Fit",
    "Separation",
    "best_fit",
    "block_fits",
    "compare_fits",
    "epoch_fits",
    "fuzziness",
    "pixel_fuzziness",
    "spikes",
]
