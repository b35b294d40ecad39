"""Tuning on labelled texts in the one training loop."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("transformers")
sys.path.insert(0, str(Path(__file__).parents[1]))
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

import text_models
import vitscope
from vitscope import open_model
from vitscope.errors import DataError, VitscopeError, WeightsError
from vitscope.training import recipe_options, train

WORDS = {"good": ("good", "fine", "warm"), "bad": ("bad", "dull", "cold")}


@pytest.fixture(scope="module")
def encoder(tmp_path_factory) -> Path:
    """A tiny BERT with a tokenizer of words, as Hugging Face's folders are."""
    folder = tmp_path_factory.mktemp("tiny-bert")
    known = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "a", "film", "very", *WORDS["good"], *WORDS["bad"]]
    backend = Tokenizer(models.WordLevel({w: i for i, w in enumerate(known)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing("[CLS] $A [SEP]", None, [("[CLS]", 2), ("[SEP]", 3)])
    named = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **named).save_pretrained(folder)
    text_models.build("bert").save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def reviews(tmp_path_factory) -> Path:
    """One word tells the class; texts have different lengths."""
    folder, draw = tmp_path_factory.mktemp("reviews"), np.random.default_rng(0)
    for split, n in (("train", 128), ("test", 24)):
        rows = []
        for i in range(n):
            label = ("good", "bad")[i % 2]
            words = ["a", *["very"] * draw.integers(0, 4), str(draw.choice(WORDS[label])), "film"]
            rows.append(f"{' '.join(words)},{label}\n")
        (folder / f"{split}.csv").write_text("text,label\n" + "".join(rows))
    return folder


@pytest.fixture
def tuned(encoder: Path, reviews: Path, tmp_path: Path):
    def run(name: str = "run", **changes):
        plain = {"weights": encoder, "data": str(reviews), "epochs": 5, "batch_size": 8, "lr": 3e-3, "progress": False}
        return train(recipe_options("sentences", out=tmp_path / name, **{**plain, "context": None, **changes}))

    return run


RPC = "rpc:iterations=2,lambda=3,variant=paper,symmetric=false"


def test_an_encoder_learns_and_its_run_opens_again_to_the_same_answers(tuned, reviews, tmp_path):
    run = tuned(attention=RPC)
    assert run.table("training")["test_accuracy"].iloc[-1] == 1.0
    model = open_model(run.path)
    assert model.classes == ["bad", "good"]
    assert model.layout.separators == (3,)
    assert {d["name"] for d in model.source["attention"]} == {"rpc"}
    answers = model(["a fine film", "a very very dull film"])
    assert answers.argmax(1).tolist() == [1, 0]
    torch.testing.assert_close(answers[:1], model(["a fine film"]))
    data = vitscope.load_data(reviews, "test", label_column="label")
    looked = vitscope.analyze(
        run.path, data, ["accuracy", "attention", "kpca.reconstruction"], out=tmp_path / "look", progress=False
    )
    assert looked.summary["accuracy.top1"]["value"] == 100.0
    assert {"attention", "kpca_reconstruction"} <= set(looked.list_tables())
    judged = tuned("judged", weights=run.path, evaluate=True)
    assert judged.table("evaluation")["accuracy"].iloc[0] == 1.0


def test_a_resumed_tuning_ends_with_the_weights_of_a_straight_one(tuned, monkeypatch):
    from vitscope.training.loop import Training

    whole = tuned("whole", epochs=2)
    step = Training.step

    def stop(self, at, batch):
        if at == 18:
            raise KeyboardInterrupt
        step(self, at, batch)

    monkeypatch.setattr(Training, "step", stop)
    with pytest.raises(KeyboardInterrupt):
        tuned("parts", epochs=2)
    monkeypatch.undo()
    again = tuned("parts", epochs=2)
    a, b = (open_model(run.path).module.state_dict() for run in (whole, again))
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_symmetric_language_model_is_tuned_with_rpc_and_keeps_what_it_was(tmp_path, reviews):
    (tmp_path / "text").mkdir()
    for split in ("train", "test"):
        rows = (reviews / f"{split}.csv").read_text().splitlines()[1:]
        (tmp_path / "text" / f"{split}.txt").write_text("\n".join(row.split(",")[0] for row in rows))
    sizes = {"depth": 2, "embed_dim": 32, "num_heads": 2}
    changes = {"data": str(tmp_path / "text"), "test_split": "test", "vocabulary": "words", "context": 8, "epochs": 1}
    lm = train(
        recipe_options(
            "quick-text", out=tmp_path / "lm", model_options=sizes, attention="symmetric", progress=False, **changes
        )
    )
    plain = {"weights": lm.path, "data": str(reviews), "epochs": 3, "batch_size": 8, "lr": 5e-3, "progress": False}
    options = recipe_options(
        "sentences", out=tmp_path / "run", attention="rpc:iterations=2,variant=exact", **{**plain, "context": None}
    )
    run = train(options)
    told = json.loads((run.path / "model.json").read_text())
    assert [d["name"] for d in told["attention"]] == ["symmetric", "rpc"]
    model = open_model(run.path)
    assert (model.module.pool, model.layout.causal) == ("last", True)
    assert run.table("training")["test_accuracy"].iloc[-1] > 0.8
    assert [d["name"] for d in model.source["attention"]] == ["symmetric", "rpc"]


def test_bad_input_is_refused_before_anything_is_written(tuned, reviews, tmp_path, encoder):
    alone = tmp_path / "alone.csv"
    alone.write_text("text,label\n" + "a film,good\n" * 20)
    surprise = tmp_path / "surprise"
    surprise.mkdir()
    (surprise / "train.csv").write_text((reviews / "train.csv").read_text())
    (surprise / "test.csv").write_text("text,label\na film,mixed\n")
    cases = [
        ({"data": str(alone)}, DataError, "nothing to learn to tell apart"),
        ({"data": str(surprise)}, DataError, "class 'mixed', which is none of bad, good"),
        ({"data": str(reviews), "column": "txt"}, DataError, "Did you mean text"),
        ({"data": "pydoc"}, DataError, "have no classes"),
        ({"data": "mnist5k"}, DataError, "are pictures"),
        ({"weights": None}, VitscopeError, "give --weights"),
        ({"weights": tmp_path}, VitscopeError, "neither the folder of a text model"),
        ({"evaluate": True}, WeightsError, "has not learned the classes"),
        ({"model_options": {"depth": 3}}, VitscopeError, "no option 'depth'"),
        ({"attention": "rpc:iterations=2", "epochs": 1}, VitscopeError, "variant='paper' or 'exact'"),
        ({"augment": "flip"}, VitscopeError, "changes pictures"),
    ]
    for number, (changes, error, words) in enumerate(cases):
        with pytest.raises(error, match=words):
            tuned(f"case{number}", **changes)


def test_an_encoder_that_was_not_tuned_cannot_be_judged_by_classes(encoder, reviews, tmp_path):
    data = vitscope.load_data(reviews, "test", label_column="label")
    with pytest.raises(VitscopeError, match="tune it first"):
        vitscope.analyze(encoder, data, ["accuracy"], out=tmp_path / "run", progress=False)
    with pytest.raises(VitscopeError, match="have classes: what a changed word"):
        vitscope.evaluate(encoder, data, tmp_path / "swapped", swap=True, progress=False)
