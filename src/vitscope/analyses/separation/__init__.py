"""Separation: how far apart the classes are in every layer, and how that decays with depth and training."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitscope.lazy import lazy

if TYPE_CHECKING:
    from vitscope.analyses.separation.analysis import Separation as Separation
    from vitscope.analyses.separation.definition import fuzziness as fuzziness
    from vitscope.analyses.separation.fits import Fit as Fit
    from vitscope.analyses.separation.fits import best_fit as best_fit
    from vitscope.analyses.separation.fits import compare_fits as compare_fits
    from vitscope.analyses.separation.pixels import pixel_fuzziness as pixel_fuzziness
    from vitscope.analyses.separation.profile import block_fits as block_fits
    from vitscope.analyses.separation.profile import epoch_fits as epoch_fits
    from vitscope.analyses.separation.profile import spikes as spikes

__getattr__, __dir__, __all__ = lazy(__name__)
