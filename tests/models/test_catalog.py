"""The table behind `vitscope models`: that it says what timm's models are, and how it is made where there is none."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from vitscope.models import candidate_names, catalog, describe, examine, list_models, open_model
from vitscope.models.catalog import SHIPPED, ModelRow

PINNED = re.search(
    r"^timm==(.*)$", (Path(__file__).resolve().parents[2] / "constraints.txt").read_text(), flags=re.MULTILINE
)[1]


@pytest.fixture
def same_timm():
    if catalog.timm_version() != PINNED:
        pytest.skip(f"the table is that of timm {PINNED}; {catalog.timm_version()} is installed")


@pytest.fixture
def another_timm(monkeypatch, tmp_path):
    """A timm whose version no table has, with two models; what is examined is noted."""
    examined = []
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(catalog, "timm_version", lambda: "0.9.99")
    monkeypatch.setattr(examine, "names_to_examine", lambda: ["test_vit", "test_vit2"])
    monkeypatch.setattr(examine, "describe", lambda name: examined.append(name) or describe(name))
    return examined


def test_the_shipped_table_is_that_of_the_timm_which_the_constraints_name():
    assert json.loads(SHIPPED.read_text())["timm"] == PINNED


def test_the_table_has_every_transformer_of_timm_and_nothing_else(same_timm):
    assert candidate_names() == examine.names_to_examine()


def test_a_model_of_every_family_and_of_every_remark_examined_afresh_is_as_the_table_says(same_timm):
    kinds: dict[tuple[str, str], ModelRow] = {}
    for row in sorted(list_models(supported=False), key=lambda row: -row.blocks * row.width):
        kinds[row.family, row.remark] = row  # the smallest of its kind
    assert {family for family, _ in kinds} > {"ViT", "distilled DeiT", "EVA / RoPE / DINOv3", "BEiT"}
    assert [describe(row.name) for row in kinds.values()] == list(kinds.values())


def test_another_timm_is_examined_once_and_kept(another_timm, capsys):
    first = list_models()
    assert [row.name for row in first] == another_timm == ["test_vit", "test_vit2"]
    assert first == [describe(name) for name in another_timm]
    assert "timm 0.9.99 are examined once" in capsys.readouterr().err
    assert list_models() == first
    assert list_models("vit2") == first[1:]
    assert len(another_timm) == 2
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("text", ["", "{", "[]", '{"timm": "0.9.99", "rows": [["test_vit", 1]]}', "[" * 100_000])
def test_a_damaged_table_in_the_cache_is_made_again(text, another_timm):
    file = catalog.cache_file("0.9.99")
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert candidate_names() == ["test_vit", "test_vit2"]
    assert json.loads(file.read_text())["timm"] == "0.9.99"


def test_a_cache_that_cannot_be_written_is_no_error(another_timm, tmp_path):
    (tmp_path / "cache").write_text("a file where the folder would be")
    assert candidate_names("vit2") == ["test_vit2"]


def test_opening_a_model_makes_no_table(another_timm, monkeypatch):
    monkeypatch.setattr("timm.create_model", lambda *_, **__: pytest.fail("reached"))
    with pytest.raises(pytest.fail.Exception, match="reached"):
        open_model("test_vit2")
    assert not catalog.cache_file("0.9.99").exists()


def test_what_the_table_refuses_is_examined_afresh_before_anybody_is_sent_away(monkeypatch):
    """A family may have been added since the table was made."""
    from vitscope.models.open import _check_supported

    of_old = [ModelRow("test_vit", supported=False, remark="of old")]
    monkeypatch.setattr("vitscope.models.open.read_table", lambda: of_old)
    _check_supported("test_vit")
