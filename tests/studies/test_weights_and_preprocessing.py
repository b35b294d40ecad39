"""What the studies do to a picture, written out with Pillow and numpy, against `--preprocess` of that name."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from vitscope.analyses.request import AnalyzeOptions
from vitscope.data.transforms import build_transform
from vitscope.errors import VitscopeError
from vitscope.models.preprocess_words import PRESETS, check_words, preprocess_in_words, words_of
from vitscope.models.preprocessing import Preprocess

TIMM = Preprocess((3, 224, 224), (0.5,) * 3, (0.5,) * 3, "bicubic", 0.9, "center", "a tag")
IMAGENET = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
HALF = 0.5, 0.5
BILINEAR, BICUBIC = Image.Resampling.BILINEAR, Image.Resampling.BICUBIC


def picture(height: int, width: int, channels: int = 3) -> Image.Image:
    pixels = np.random.default_rng(0).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(pixels if channels == 3 else pixels[..., 0])


def normalised(image: Image.Image, mean, std) -> np.ndarray:
    pixels = np.asarray(image, dtype=np.float64).reshape(image.height, image.width, -1) / 255
    return ((pixels - mean) / std).transpose(2, 0, 1)


def centre(image: Image.Image, size: int) -> Image.Image:
    left, top = round((image.width - size) / 2), round((image.height - size) / 2)
    return image.crop((left, top, left + size, top + size))


def short_side(image: Image.Image, size: int, how: Image.Resampling) -> Image.Image:
    shape = (size, size * image.height // image.width) if image.width < image.height else None
    return image.resize(shape or (size * image.width // image.height, size), how)


PROGRAMS = {
    "reproduction": lambda p: normalised(p.resize((224, 224), BILINEAR), *IMAGENET),
    "rpc": lambda p: normalised(centre(short_side(p, 256, BICUBIC), 224), *IMAGENET),
    "class-embedding": lambda p: normalised(p.resize((224, 224), BILINEAR), *HALF),
    "class-embedding-refinement": lambda p: normalised(centre(p.resize((256, 256), BICUBIC), 224), *IMAGENET),
    "cifar": lambda p: normalised(p.resize((224, 224), BILINEAR), *HALF),
}


@pytest.mark.parametrize("size", [(300, 260), (250, 401), (32, 32)], ids=str)
@pytest.mark.parametrize("study", PROGRAMS)
def test_a_preset_is_what_the_studys_program_does(study, size):
    image = picture(*size)
    ours, _ = build_transform(preprocess_in_words(TIMM, study))(image)
    np.testing.assert_allclose(ours.numpy(), PROGRAMS[study](image), rtol=0, atol=1e-6)


def test_the_separation_study_takes_grey_pictures_as_they_are():
    grey = Preprocess((1, 28, 28), (0.5,), (0.5,))
    ours, _ = build_transform(preprocess_in_words(grey, "separation"))(picture(28, 28, 1))
    np.testing.assert_allclose(ours.numpy(), normalised(picture(28, 28, 1), 0.1307, 0.3081), rtol=0, atol=1e-6)
    assert set(PRESETS) == {*PROGRAMS, "separation"}


def test_words_go_over_the_models_own_recipe_from_left_to_right():
    assert preprocess_in_words(TIMM, "squash").to_dict() == {
        **TIMM.to_dict(), "crop_mode": "squash", "source": "--preprocess squash",
    }  # fmt: skip
    mixed = preprocess_in_words(TIMM, "reproduction, interpolation=lanczos,mean=0.1/0.2/0.3,std=0.4")
    assert (mixed.interpolation, mixed.mean, mixed.std) == ("lanczos", (0.1, 0.2, 0.3), (0.4,) * 3)
    for side in range(225, 400):  # whatever floating point makes of the quotient
        assert int(224 / preprocess_in_words(TIMM, f"resize={side}").crop_pct) == side


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        ("reproductoin", "'reproductoin' means nothing. Did you mean reproduction"),
        ("sqash", "Did you mean squash"),
        ("squash,interpolaton=bicubic", "Did you mean interpolation="),
        ("interpolation=bicubik", "no interpolation 'bicubik'. Did you mean bicubic"),
        ("mean=a/b/c", "mean=a/b/c is not numbers"),
        ("std=0", "std=0 is not positive numbers"),
        ("crop=nan", "crop=nan is not the share"),
        ("resize=25.5", "resize=25.5 is not whole pixels"),
        ("", "'' means nothing"),
    ],
)
def test_a_misspelt_word_is_answered_with_the_nearest(words, answer):
    with pytest.raises(VitscopeError) as error:
        check_words(words)
    assert answer in str(error.value)


def test_a_mean_for_another_number_of_channels_is_refused():
    with pytest.raises(VitscopeError, match="mean has 2 values, the model 3 channels"):
        preprocess_in_words(TIMM, "mean=0.1/0.2")


def test_a_request_opens_its_models_with_the_words_and_a_run_leads_back_to_them():
    options = AnalyzeOptions(
        models=("test_vit",), weights=("random",), model_options={"img_size": 32}, preprocess="reproduction"
    )
    (model,) = options.open()
    assert model.preprocess.crop_mode == "squash"
    assert model.preprocess.input_size == (3, 32, 32)
    assert words_of(model.preprocess.to_dict()["source"]) == "reproduction"
    assert words_of("a tag") is None
    with pytest.raises(VitscopeError, match="Did you mean squash"):
        AnalyzeOptions(models=("test_vit",), data="mnist5k", preprocess="squas").check()
