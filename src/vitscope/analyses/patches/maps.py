"""Images of the gallery, patch by patch: what each is taken for after a block, and how likely its own class is."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd
from torch import Tensor

from vitscope.analyses.patches.truth import Truth
from vitscope.data.batch import Batch

PROBABILITY = "probability of the patch's class"


def reading_rows(block: int, logits: Tensor, truth: Truth, batch: Batch, shown: Sequence[int]) -> pd.DataFrame:
    """Rows of `patches_maps`: what patches are taken for after a block (-1: the embedding), and their true class."""
    taken = logits[list(shown)].argmax(-1)  # (B, T)
    cells = {"class": taken.flatten().numpy(), "truth": truth.classes[list(shown)].flatten().numpy()}
    return _places(block, truth, batch, shown).assign(**cells)


def map_rows(block: int, logits: Tensor, truth: Truth, batch: Batch, shown: Sequence[int]) -> pd.DataFrame:
    """Rows of `maps_patches`, which the page's gallery draws. A patch without a class has none."""
    classes = truth.classes[list(shown)]
    p = logits[list(shown)].double().softmax(-1).gather(-1, classes.clamp(min=0)[..., None])[..., 0]  # (B, T)
    table = _places(block, truth, batch, shown).assign(map=PROBABILITY, value=p.flatten().numpy())
    return table[classes.flatten().numpy() >= 0][["image", "map", "block", "row", "col", "value"]]


def _places(block: int, truth: Truth, batch: Batch, shown: Sequence[int]) -> pd.DataFrame:
    place, row, column = np.indices((len(shown), *truth.grid)).reshape(3, -1)
    image = batch.indices[list(shown)].numpy()[place]
    return pd.DataFrame({"image": image, "block": block, "row": row, "col": column})
