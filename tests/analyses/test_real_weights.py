"""A real ImageNet ViT-Tiny on real images: the numbers that its weights are known to reach."""

import pytest

from vitscope.analyses import analyze
from vitscope.models import open_model


@pytest.mark.parametrize(
    ("folder", "split", "images", "top1", "top5"),
    [("imagenet", "val", 1000, 735, 921), ("ImageNetS919", "validation", 192, 158, None)],
)
def test_vit_tiny_recognises_as_many_images_as_it_should(shared, tmp_path, folder, split, images, top1, top5):
    weights = shared / "weights" / "vit_tiny_patch16_224.safetensors"
    model = open_model("vit_tiny_patch16_224.augreg_in21k_ft_in1k", weights)
    run = analyze(
        model, shared / "data" / folder, ["accuracy"], tmp_path / "run", split=split, report=False, progress=False
    )
    predictions = run.table("predictions")
    assert len(predictions) == images
    assert (predictions["rank"] == 1).sum() == top1
    assert top5 is None or (predictions["rank"] <= 5).sum() == top5
    assert run.summary["accuracy.top1"]["value"] == pytest.approx(100 * top1 / images)
