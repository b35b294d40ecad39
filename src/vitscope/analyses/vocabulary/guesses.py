"""Texts of the gallery, token by token: how the next token stands after each block, and what is guessed instead."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
from torch import Tensor

from vitscope.analyses.gallery import LONGEST_TEXT, readable
from vitscope.architectures.text_layout import token_ids
from vitscope.data.batch import Batch
from vitscope.models import Model

LOG_P, RANK = "log-probability of the next token", "rank of the next token, log10(1 + rank)"


def map_rows(block: int, rank: Tensor, log_p: Tensor, batch: Batch, shown: Sequence[int]) -> pd.DataFrame:
    """Rows of `maps_vocabulary` for the texts at these places of a batch.

    Rank and log p (T,) are those of all its targets. Ranks span decades, so that their map is logarithmic.
    """
    item, place = (batch.targets >= 0).nonzero(as_tuple=True)  # (T,)
    frames = []
    for i in shown:
        here = (item == i) & (place < LONGEST_TEXT)
        for name, values in ((LOG_P, log_p), (RANK, (1 + rank).log10())):
            cells = {"row": 0, "col": place[here].numpy(), "value": values[here].numpy()}
            frames.append(pd.DataFrame({"image": int(batch.indices[i]), "map": name, "block": block, **cells}))
    return pd.concat(frames, ignore_index=True)


def guess_rows(block: int, x: Tensor, batch: Batch, shown: Sequence[int], model: Model, guesses: int) -> pd.DataFrame:
    """Rows of `vocabulary_topk`: the likeliest words behind each token of these texts, residual stream (B, N, C)."""
    ids, preprocess = token_ids(batch.inputs), model.preprocess
    frames = []
    for i in shown:
        n = min(LONGEST_TEXT, ids.shape[1] if batch.valid is None else int(batch.valid[i].sum()))
        words, log_p = model.top_words(x[i, :n], guesses)  # (n, guesses)
        named = [readable(word) for word in preprocess.words(words.flatten().tolist())]
        own = [readable(word) for word in preprocess.words(ids[i, :n].tolist())]
        k = words.shape[-1]
        frames.append(
            pd.DataFrame(
                {
                    "image": int(batch.indices[i]),
                    "block": block,
                    "token": [place for place in range(n) for _ in range(k)],
                    "word": [word for word in own for _ in range(k)],
                    "place": list(range(k)) * n,
                    "guess": named,
                    "log_probability": log_p.flatten().cpu().double().numpy(),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)
