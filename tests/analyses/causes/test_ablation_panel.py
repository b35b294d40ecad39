"""The panels of ablation and patching: maps per token, from tables alone."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from vitscope.analyses.causes import ablation_panel as panels
from vitscope.report.figures import house_style

NAN = float("nan")


def per_token(kind="resid", head=NAN, **more) -> pd.DataFrame:
    """Two blocks, a class token and a grid of 2 x 3: the value of a token is 10 * block + its number."""
    rows = []
    for block in (0, 1):
        for token in range(7):
            row, column = divmod(token - 1, 3) if token else (NAN, NAN)
            place = {"kind": kind, "head": head, "block": block, "token": token, "row": row, "column": column}
            rows.append(place | {"logit_change": -10.0 * block - token, "method": "zero", "n_images": 5} | more)
    return pd.DataFrame(rows)


def test_a_map_has_every_token_at_its_place_and_the_first_token_in_its_title():
    with house_style():
        figure = panels.draw_maps(per_token(), "logit_change", "change")
    first, second = figure.axes[:2]
    for number, ax in enumerate((first, second)):
        (mesh,) = ax.collections
        assert np.array_equal(mesh.get_array().reshape(2, 3), -10.0 * number - np.arange(1, 7).reshape(2, 3))
        assert mesh.get_clim() == (-16, 16)
        assert ax.get_title(loc="left").split("\n")[0] == f"block {number}"
        assert float(ax.get_title(loc="left").split("first token ")[1].replace("−", "-")) == -10.0 * number


def test_a_run_of_single_tokens_alone_has_a_panel_with_a_map(monkeypatch):
    found = {"causes_ablation_tokens": {"tiny": per_token()}}
    monkeypatch.setattr(panels, "tables_of", lambda runs, name: found.get(name, {}))
    monkeypatch.setattr(panels, "protocol", lambda runs, table, variant: f"{table}: {variant}")
    with house_style():
        panel = panels.ablation_panel({"tiny": None})
    assert list(panel.figures) == list(panel.captions) == list(panel.alt) == ["causes_ablation_map_0"]
    assert "at one token. Mean over 5 images." in panel.captions["causes_ablation_map_0"]
    assert list(panel.tables) == ["causes_ablation_tokens"]
    assert panel.protocol.startswith("causes_ablation_tokens: set to zero")


def test_the_card_names_the_part_that_is_missed_most():
    part = {"kind": "head", "tokens": "all"}
    rows = [part | {"block": b, "logit_change": c, "logit_change_low": c - 1, "logit_change_high": c + 1}
            for b, c in ((0, -0.5), (1, -3.0), (1, 0.5))]  # fmt: skip
    card = panels._card({"tiny": pd.DataFrame(rows)})
    value = card.values["tiny"]
    assert (value.number, value.low, value.high) == (-3, -4, -2)
    assert card.says.endswith("without the head missed most, in block 1")
    assert card.lines == {"tiny": [-0.5, -3.0]}
    assert panels._card({}) is None


def test_agreement_is_told_with_its_interval(monkeypatch):
    heads = [("head.0.1", 0, 1, -2.0), ("head.1.0", 1, 0, -1.0)]
    table = pd.DataFrame(
        {"component": n, "kind": "head", "block": b, "head": h, "tokens": "all", "method": "mean", "logit_change": c,
         "logit_change_low": NAN, "logit_change_high": NAN, "n_images": 9} for n, b, h, c in heads
    )  # fmt: skip
    agreement = pd.DataFrame([{"kind": "head", "of_means": 0.25, "of_means_low": 0.1, "of_means_high": 0.375}])
    (most, rank) = panels._findings(table, None, agreement)
    assert "head 1 of block 0" in most.text
    assert "correlation of 0.250 (95 % interval 0.100 to 0.375)" in rank.text


@pytest.mark.parametrize("directions", [["denoising"], ["denoising", "noising"]])
def test_what_restores_and_what_loses_have_maps_of_their_own(monkeypatch, directions):
    from vitscope.analyses.causes import patching_panel

    parts = [("resid", NAN), ("head", 1)]
    tables = [
        per_token(*part, pairs="class", direction=d, n_pairs=4).rename(columns={"logit_change": "share"})
        for part in parts
        for d in directions
    ]
    found = {"causes_patching_tokens": {"tiny": pd.concat(tables)}}
    monkeypatch.setattr(patching_panel, "tables_of", lambda runs, name: found.get(name, {}))
    monkeypatch.setattr(patching_panel, "protocol", lambda *args: "")
    with house_style():
        panel = patching_panel.patching_panel({"tiny": None})
    assert list(panel.figures) == [f"causes_patching_map_{number}_{d}" for number in (0, 1) for d in directions]
    assert "when head 1 of a block is exchanged" in panel.captions["causes_patching_map_1_denoising"]
    assert all("mean over 4 pairs" in caption for caption in panel.captions.values())
