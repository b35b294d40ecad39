from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses.separation import block_fits, epoch_fits, spikes


def profile(blocks, pixels=8.0, embedding=5.0, token="class", **columns):
    rows = [("pixels", "", 0, pixels), ("embedding", "mean", 0, embedding)]
    rows += [("block", token, i + 1, d) for i, d in enumerate(blocks)]
    return pd.DataFrame(rows, columns=["point", "token", "layer", "fuzziness"]).assign(**columns)


def test_the_spike_is_told_against_pixels_and_against_the_embedding():
    (row,) = spikes(profile([10.0, 20.0, 6.0, 4.0])).to_dict("records")[:1]
    assert (row["token"], row["place"], row["peak"], row["fall"]) == ("class", 2, 20.0, 5.0)
    assert (row["over_pixels"], row["over_embedding"]) == (2.5, 4.0)


def test_without_pixels_the_ratio_is_undefined_and_the_rest_stands():
    table = profile([3.0, 2.0], pixels=float("nan"))
    (row,) = [r for r in spikes(table).to_dict("records") if r["token"] == "class"]
    assert np.isnan(row["over_pixels"])
    assert row["over_embedding"] == pytest.approx(0.6)


def test_blocks_alone_are_fitted():
    fits = block_fits(profile(40 * 0.6 ** np.arange(7)))
    law = fits[(fits["curve"] == "log_linear") & (fits["token"] == "class")].iloc[0]
    assert law["rho"] == pytest.approx(0.6)
    assert law["points"] == 7
    assert law["over"] == "blocks"


def test_the_last_block_is_fitted_over_epochs_for_each_split_without_the_untrained_model():
    parts = [
        profile([50.0, 1.0 if epoch == 0 else 20 * rho**epoch], epoch=epoch, split=split)
        for epoch in range(0, 21, 2)
        for split, rho in (("train", 0.8), ("test", 0.9))
    ]
    fits = epoch_fits(pd.concat(parts, ignore_index=True))
    law = fits[fits["curve"] == "log_linear"].set_index(["split", "token"])["rho"]
    assert law["train", "class"] == pytest.approx(0.8)
    assert law["test", "class"] == pytest.approx(0.9)
    assert len(epoch_fits(parts[0])) == 0
