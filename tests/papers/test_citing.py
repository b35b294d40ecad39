from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from vitscope import Analysis, __version__
from vitscope.attention import AttentionModule
from vitscope.errors import VitscopeError
from vitscope.papers import bibliography, sources
from vitscope.papers.citing import works
from vitscope.registry import ANALYSES, ATTACKS, ATTENTIONS, DATASETS, SETS
from vitscope.runs import Run

ROOT = Path(__file__).resolve().parents[2]
GENERAL = {"folder", "wds", "hfds", "tfds"}  # ways to read data, no data


@pytest.mark.parametrize(
    ("registry", "table"),
    [(ANALYSES, sources.ANALYSES), (ATTACKS, sources.ATTACKS), (ATTENTIONS, sources.ATTENTIONS), (SETS, sources.SETS)],
)
def test_everything_that_is_registered_says_what_it_cites_or_that_it_is_ours(registry, table):
    assert set(registry.homes()) == set(table)


def test_every_data_set_says_what_it_cites():
    assert set(DATASETS.homes()) - GENERAL == set(sources.DATASETS)


def test_every_key_has_an_entry_and_every_entry_is_used():
    tables = (sources.ANALYSES, sources.ATTACKS, sources.ATTENTIONS, sources.SETS, sources.DATASETS)
    used = {key for table in tables for keys in table.values() for key in keys}
    used |= {key for _, keys in sources.MODELS for key in keys}
    used |= {*sources.MOMENTUM, *sources.CORRUPTION, *sources.REFINED, *sources.LINEAR}
    assert used == set(works())


@pytest.mark.parametrize("key", sorted(works()))
def test_an_entry_is_well_formed(key):
    entry = works()[key]
    bare = re.sub(r"\\[{}]", "", entry)
    assert bare.count("{") == bare.count("}")
    fields = dict(re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.MULTILINE))
    assert {"author", "title", "year"} <= set(fields)
    assert re.fullmatch(r"(19|20)\d\d", fields["year"])
    assert fields["year"] in key
    assert len(fields) == len(entry.splitlines()) - 2, "a line of the entry is no field"
    assert re.fullmatch(r"\d{4}\.\d{4,5}", fields.get("eprint", "0000.00000"))


def a_run(folder, **config):
    with Run.create(folder, config, kind="analyze") as run:
        run.finish()
    return folder


def test_a_run_cites_what_it_used_and_nothing_else(tmp_path):
    attack = {"attacks": {"pgd": {"momentum": 0.9}, "noise": {}}}
    model = {"name": "vit_tiny_patch16_224", "attention": [{"name": "rpc", "layers": "0"}]}
    text = bibliography(a_run(tmp_path / "r", model=model, data={"source": "mnist5k"}, analyses={"attack": attack}))
    keys = re.findall(r"^@\w+\{(.*),$", text, re.MULTILINE)
    assert keys[0] == "vitscope"
    assert set(keys[1:]) == {
        "dosovitskiy2021image", "wightman2019timm", "lecun1998gradient", "wilson1927probable", "madry2018towards",
        "dong2018boosting", "teo2024unveiling", "candes2011robust",
    }  # fmt: skip
    assert "% attack noise: vitscope itself." in text
    assert f"version = {{{__version__}}}" in text
    assert rf"\cite{{{','.join(keys)}}}" in text


def test_the_training_behind_a_model_is_cited_too(tmp_path):
    options = {"attention": "scaled:layers=0;rpc", "probe": ["separation"], "distillation": "hard"}
    place = tmp_path / "t"
    with Run.create(place, {"model": {"name": "small"}, "options": options}, kind="train") as run:
        run.finish()
    looked = a_run(tmp_path / "a", model={"name": "small", "run": "t", "run_path": str(place)}, analyses={"save": {}})
    text = bibliography(looked)
    assert {"teo2024unveiling", "he2023law", "touvron2021training"} <= set(re.findall(r"^@\w+\{(.*),$", text, re.M))
    assert "Varam et al." in text


def test_what_is_not_known_is_said(tmp_path):
    text = bibliography(a_run(tmp_path / "r", model={"name": "mine"}, data={"source": "a/folder", "name": "folder"}))
    assert "% model mine: whom to cite is not known here" in text
    assert "% data folder: whom to cite is not known here" in text


def test_an_analysis_and_an_attention_of_ones_own_bring_their_entries(tmp_path):
    class Own(Analysis):
        cites = "@misc{me2026, title = {Mine}}"

    Look = type("Look", (AttentionModule,), {"cites": ("@misc{look2026, title = {Look}}",), "__module__": "mine"})
    model = {"attention": "mine:Look:layers=0;unseen:Other"}
    with ANALYSES.restored(), ATTENTIONS.restored():
        ANALYSES.add("own", Own)
        ATTENTIONS.adopt("look", Look)
        text = bibliography(a_run(tmp_path / "r", model=model, analyses={"own": {}}))
        assert "% analysis own: me2026." in text
        assert "% attention look: look2026." in text  # called by its address
        assert "% attention unseen:Other: whom to cite is not known here" in text
        assert Own.cites in text
        Own.cites = "somewhere"
        with pytest.raises(VitscopeError, match="no BibTeX entry"):
            bibliography(tmp_path / "r")


def test_the_citation_file_has_what_the_format_demands_and_the_version_of_the_package():
    found = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert {"cff-version", "message", "title", "authors"} <= set(found)
    assert found["cff-version"] == "1.2.0"
    assert found["version"] == __version__
    assert found["type"] in ("software", "dataset")
    assert all("name" in author or "family-names" in author for author in found["authors"])


def test_the_changelog_begins_with_the_version_of_the_package():
    headings = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == __version__
