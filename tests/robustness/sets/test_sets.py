"""Each set in the layout in which it is distributed, and what is said about folders that are something else."""

import sys
from pathlib import Path

import pytest

from vitscope.data import synsets
from vitscope.errors import DataError, VitscopeError
from vitscope.registry import SETS
from vitscope.robustness.corruptions import COMMON
from vitscope.robustness.corruptions.names import FAMILIES
from vitscope.robustness.sets import SetOptions, list_sets, open_sets, parse_sets, register_set

sys.path.insert(0, str(Path(__file__).parent.parent))
import set_folders as folders


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return folders.make_sets(tmp_path_factory.mktemp("sets"))


def test_a_set_lives_where_its_function_stands_not_where_an_example_names_it():
    assert {home.rpartition(".")[2] for home in SETS.homes().values()} == {"class_folders", "imagenet_c"}


@pytest.mark.parametrize(("letter", "per_class"), [("A", 2), ("R", 3)])
def test_a_set_of_few_classes_reads_its_classes_off_its_folders(sets, letter, per_class):
    (condition,) = open_sets({letter: sets[letter]})
    expected = folders.OWN[letter]
    assert condition.classes == expected
    assert condition.data.labels == [number for number in expected for _ in range(per_class)]
    assert condition.data.num_classes == 1000
    assert condition.key == letter
    assert condition.labelled
    assert not condition.cropped
    assert "200 classes as published" in " ".join(condition.data.warnings)


def test_imagenet_o_has_no_right_answers_but_classes_to_be_compared_with(sets):
    (condition,) = open_sets({"O": sets["O"]})
    assert condition.classes == folders.OWN["O"]
    assert not condition.labelled


def test_imagenet_v2_is_labelled_by_the_numbers_of_its_folders_not_by_their_order(sets):
    (condition,) = open_sets({"V2": sets["V2"]})
    assert condition.data.labels == [2, 10, 100]
    assert [path.split("/")[0] for path in condition.data.paths] == ["2", "10", "100"]
    assert condition.data.class_ids[2] == synsets.wordnet_ids()[2]
    assert condition.classes == ()


def test_a_folder_inside_a_folder_is_found(sets):
    (sketch,) = open_sets({"SKETCH": sets["SKETCH"]})  # .../ImageNet-Sketch/sketch/n01440764/
    assert sketch.data.labels == list(folders.SKETCH)
    (v2,) = open_sets({"V2": sets["V2"]})
    (above,) = open_sets({"V2": _only_child(sets["V2"])})
    assert above.data.labels == v2.data.labels


def _only_child(folder: Path) -> Path:
    parent = folder.parent / "v2-download"
    parent.mkdir(exist_ok=True)
    link = parent / folder.name
    if not link.exists():
        link.symlink_to(folder)
    return parent


@pytest.mark.parametrize("archives", [True, False])
def test_imagenet_c_is_found_below_its_archives_or_directly(tmp_path, archives):
    family = {name: key for key, names in FAMILIES.items() for name in names}
    root = folders.make_c(tmp_path / "c", {n: family[n] if archives else "" for n in ("fog", "shot_noise")})
    conditions = open_sets({"C": root}, SetOptions(corruptions=("shot_noise", "fog")))
    assert [c.key for c in conditions] == [f"C/{n}/{s}" for n in ("shot_noise", "fog") for s in range(1, 6)]
    assert all(c.cropped and c.data.labels == [7, 20] for c in conditions)


def test_a_missing_corruption_folder_is_named_with_the_way_out(tmp_path):
    root = folders.make_c(tmp_path / "c", {n: "" for n in COMMON if n not in ("fog", "snow")}, (1,))
    with pytest.raises(DataError, match=r"lacks 2 corruption folder\(s\).*snow, fog.*--c-corruptions gaussian_noise,"):
        open_sets({"C": root}, SetOptions(severities=(1,)))
    with pytest.raises(DataError, match=r"lacks gaussian_noise/2.*--severities"):
        open_sets({"C": root}, SetOptions(corruptions=("gaussian_noise",), severities=(1, 2)))


@pytest.mark.parametrize("letter", ["A", "R", "O", "SKETCH", "V2"])
def test_class_folders_that_are_not_imagenets_are_refused(tmp_path, letter):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        folders.picture(0).save(tmp_path / name / "x.png")
    with pytest.raises(DataError, match=r"class folders should be WordNet ids .*n01440764.*2 of its 2 folders are not"):
        open_sets({letter: tmp_path})


def test_numbers_beyond_the_classes_and_foreign_names_among_numbers_are_refused(tmp_path):
    for name in ("3", "1000"):
        (tmp_path / name).mkdir()
        folders.picture(0).save(tmp_path / name / "x.png")
    with pytest.raises(DataError, match=r"0 to 999, but there is '1000'"):
        open_sets({"V2": tmp_path})


def test_a_subset_is_seeded_and_keeps_all_classes_of_the_mask(sets):
    one, two = (open_sets({"R": sets["R"]}, SetOptions(images=2, seed=4))[0] for _ in range(2))
    assert len(one.data) == 2
    assert one.data.paths == two.data.paths
    assert one.classes == folders.OWN["R"]


def test_words_become_folders():
    assert list(parse_sets("r=x/r, A=y/a")) == ["A", "R"]  # the order of the registry
    assert parse_sets(["V2=x", "SKETCH=y"])["V2"] == Path("x")
    assert parse_sets(None) == {}
    with pytest.raises(VitscopeError, match=r"no set 'SKETHC'.*Did you mean SKETCH"):
        parse_sets("SKETHC=x")
    with pytest.raises(VitscopeError, match=r"LETTER=FOLDER, such as A=path/to/imagenet-a"):
        parse_sets("path/to/imagenet-a")
    with pytest.raises(VitscopeError, match="twice"):
        parse_sets("A=x,a=y")
    with pytest.raises(DataError, match=r"does not exist: --ood A=DIR takes the folder of ImageNet-A"):
        open_sets(parse_sets("A=/no/such/folder"))


def test_a_set_of_ones_own_is_a_decorated_function(sets):
    @register_set("X", "my set")
    def mine(folder, options):
        return open_sets({"V2": folder}, options)

    assert list_sets()["X"] == "my set"
    assert len(open_sets(parse_sets({"X": sets["V2"]}))[0].data) == 3
