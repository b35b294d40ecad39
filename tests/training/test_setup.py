from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitscope.data.batch import Item
from vitscope.models import open_model
from vitscope.models.creation import sketch
from vitscope.training import TrainOptions, train
from vitscope.training.setup import what_is_lost, what_pieces_change


class Pictures:
    """What the remark reads of a data set."""

    name = "flowers"

    def __init__(self, mode: str) -> None:
        self.mode = mode

    def read(self, i: int, masks: bool = True) -> Item:
        return Item(Image.new(self.mode, (28, 28)), 0, i, "picture")


@pytest.mark.parametrize(("channels", "mode", "lost"), [(1, "RGB", True), (1, "L", False), (3, "RGB", False)])
def test_colours_that_the_model_does_not_take_are_said_aloud(channels, mode, lost):
    model = open_model("test_vit", "random", in_chans=channels)
    assert bool(what_is_lost(model, Pictures(mode))) == lost


def test_doubtful_data_are_remarked_in_the_run(tmp_path):
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for name in ("a", "b"):
            for folder in (split, f"{split}-segmentation"):
                (tmp_path / folder / name).mkdir(parents=True)
            for i in range(8):
                pixels = rng.integers(0, 256, (16, 16), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / split / name / f"{i}.png")
                Image.fromarray(255 * (pixels > 99).astype(np.uint8)).save(
                    tmp_path / f"{split}-segmentation" / name / f"{i}.png"
                )
    Image.new("L", (16, 16)).save(tmp_path / "train" / "stray.png")
    model = {"img_size": 16, "patch_size": 8, "in_chans": 1, "embed_dim": 8, "depth": 1, "num_heads": 1}
    options = {"data": str(tmp_path), "model_options": model, "epochs": 1, "batch_size": 8, "progress": False}
    probed = {"probe": ("class_space.identifiability",), "probe_images": 16}
    run = train(TrainOptions(out=tmp_path / "run", **options, **probed))
    assert any("1 images lie beside the class folders" in warning for warning in run.warnings)
    assert any("--mask-decoding nonzero" in warning for warning in run.warnings)
    assert "object" not in set(run.table("probe_class_space_identifiability")["tokens"])
    decoded = train(TrainOptions(out=tmp_path / "decoded", **options, **probed, mask_decoding="nonzero"))
    assert not any("mask" in warning for warning in decoded.warnings)
    assert "object" in set(decoded.table("probe_class_space_identifiability")["tokens"])
    assert "mask_decoding" not in run.config["options"]  # as in runs that knew no such option


def test_batch_norms_that_see_a_piece_of_a_batch_are_said_aloud() -> None:
    fan, plain = sketch("fan_tiny_12_p16_224"), sketch("vit_tiny_patch16_224")
    assert what_pieces_change(fan, 1) is None
    assert what_pieces_change(plain, 4) is None
    assert "1/4 of a batch" in str(what_pieces_change(fan, 4))
