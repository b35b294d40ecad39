from __future__ import annotations

from vitscope.data import synsets


def test_the_ids_are_sorted_as_in_every_imagenet_head() -> None:
    ids = synsets.wordnet_ids()
    assert len(ids) == 1000 == len(set(ids))
    assert list(ids) == sorted(ids)
    assert (ids[0], ids[207], ids[999]) == ("n01440764", "n02099601", "n15075141")


def test_names_are_short_and_tell_classes_apart() -> None:
    names = synsets.class_names()
    assert (names[0], names[207]) == ("tench", "golden retriever")
    assert len(set(names)) == 1000
    assert names[134] == "crane (n02012849)"  # the bird
    assert names[517] == "crane (n03126707)"  # the machine


def test_only_ids_of_the_thousand_count() -> None:
    assert synsets.count_known(["n01440764", "n99999999", "cat", "n01443537"]) == 2
    assert synsets.count_known([]) == 0
