"""What the page's gallery is given."""

from __future__ import annotations

import base64
from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from vitscope.report.gallery import colour_tables, encode_maps, gallery_data, scale
from vitscope.runs import Run


def _cells(grid: np.ndarray, block: int = 0) -> pd.DataFrame:
    row, col = (a.ravel() for a in np.indices(grid.shape))
    return pd.DataFrame({"image": 0, "map": "m", "block": block, "row": row, "col": col, "value": grid.ravel()})


def test_a_map_reads_back_within_one_level() -> None:
    grid = np.random.default_rng(0).random((5, 7))
    maps = encode_maps(_cells(grid).sample(frac=1, random_state=0), 0.0, 1.0)
    levels = np.frombuffer(base64.b64decode(maps["blocks"][0]), np.uint8).reshape(maps["h"], maps["w"])
    np.testing.assert_allclose(levels / 255, grid, atol=0.5 / 255 + 1e-12)


def test_signed_maps_have_zero_in_the_middle_and_others_at_the_start() -> None:
    assert scale((-0.5, 2.0), True) == (-2.0, 2.0)
    assert scale((0.0, 2.0), False) == (0.0, 2.0)
    maps = encode_maps(_cells(np.zeros((2, 2))), -2.0, 2.0)
    assert set(base64.b64decode(maps["blocks"][0])) <= {127, 128}


def test_an_all_zero_map_does_not_divide_by_zero() -> None:
    assert set(base64.b64decode(encode_maps(_cells(np.zeros((2, 2))), 0.0, 0.0)["blocks"][0])) == {0}


def test_models_share_images_and_the_scale_of_each_map(make_run: Callable[..., Run]) -> None:
    runs = {"a": make_run("a", seed=0), "b": make_run("b", seed=1, blocks=3)}
    data = gallery_data(runs)
    assert data is not None
    assert len(data["images"]) == 6
    assert [(r["model"], r["map"]) for r in data["rows"]] == [
        ("a", "attention"), ("a", "class logit"), ("b", "attention"), ("b", "class logit")
    ]  # fmt: skip
    first, second = data["rows"][0]["images"][0], data["rows"][2]["images"][0]
    assert (first["low"], first["high"]) == (second["low"], second["high"])
    largest = max(t["value"].max() for r in runs.values() if (t := r.table("maps_attention")) is not None)
    assert max(m["high"] for m in data["rows"][0]["images"].values()) == largest
    assert sorted(second["blocks"]) == [0, 1, 2]
    assert data["images"][0]["predicted"] == {"a": "0", "b": "0"}


def test_images_without_a_class_name_show_the_number_and_unknown_ones_nothing(make_run: Callable[..., Run]) -> None:
    run = make_run("a")
    table = run.table("images")
    assert table is not None
    table = table.assign(class_name="", predicted_name="", prediction=[-1, 1, 2, 3, 4, 5])
    with Run.create(run.path, run.config, kind="analyze") as writer:
        writer.write_table("images", table)
    data = gallery_data({"a": Run.open(run.path)})
    assert data is not None
    assert data["images"][0]["predicted"] == {}
    assert data["images"][1]["predicted"] == {"a": "class 1"}
    assert data["images"][1]["class"] == "class 1"


def test_missing_and_broken_pictures_are_left_out(make_run: Callable[..., Run]) -> None:
    run = make_run("a")
    (run.images_dir / "0.png").unlink()
    (run.images_dir / "1.png").write_bytes(b"not a picture")
    data = gallery_data({"a": run})
    assert data is not None
    assert [i["path"] for i in data["images"]] == [f"digits/{i}.png" for i in (2, 3, 4, 5)]


def test_large_pictures_travel_as_small_jpegs(make_run: Callable[..., Run]) -> None:
    run = make_run("a")
    noise = np.random.default_rng(0).integers(0, 255, (400, 300, 3), np.uint8)
    Image.fromarray(noise).save(run.images_dir / "0.png")
    data = gallery_data({"a": run})
    assert data is not None
    assert data["images"][0]["src"].startswith("data:image/jpeg")
    assert data["images"][1]["src"].startswith("data:image/png")
    assert len(data["images"][0]["src"]) < 80_000


def test_a_run_without_images_has_no_gallery(make_training: Callable[..., Run]) -> None:
    assert gallery_data({"t": make_training("t")}) is None


@pytest.mark.parametrize("name", ["sequential", "diverging"])
def test_colour_tables_are_256_rgb_triples(name: str) -> None:
    assert len(base64.b64decode(colour_tables()[name])) == 768
