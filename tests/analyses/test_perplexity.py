"""Perplexity against a loop over targets, one forward pass each."""

from __future__ import annotations

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import vitscope
from vitscope.analyses.perplexity import ratio_interval
from vitscope.data.text.vocabulary import build_vocabulary
from vitscope.errors import VitscopeError
from vitscope.models.own_tokenizer import preprocess_of
from vitscope.tasks.language import Language, token_losses

SHARED = Path(os.environ.get("VITSCOPE_SHARED", Path(__file__).parents[3] / "shared"))
STORIES = SHARED / "weights" / "stories260K"
real = pytest.mark.skipif(not STORIES.exists(), reason="stories260K is not here")

TEXTS = {
    "one.txt": "Once upon a time there was a little girl who lived in a house near the woods.",
    "two.txt": "Tom had a red ball. He liked to play with it all day long, and his dog did too.",
    "three.txt": "The sun was high. Lily ran.",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    place = tmp_path_factory.mktemp("texts")
    for name, text in TEXTS.items():
        (place / name).write_text(text)
    return place


@pytest.fixture(scope="module")
def model():
    return vitscope.open_model(STORIES)


def one_by_one(model, tokens: list[int], context: int, stride: int) -> list[float]:
    """-ln p of every token but the first, each from the window that scores it: no batch, no padding, no mask."""
    found, done, start = {}, 0, 0
    while done < len(tokens) - 1:
        stop = min(start + context + (stride == 1), len(tokens))
        for place in range(max(done + 1, start + 1), stop):
            with torch.no_grad():
                logits = model(torch.tensor([tokens[start:place]]))[0, -1].double()
            found[place] = float(-logits.log_softmax(-1)[tokens[place]])
            done = place
        start += stride
    return [found[place] for place in sorted(found)]


@real
@pytest.mark.parametrize(("context", "stride"), [(12, 1), (16, 5), (64, 32)])
def test_windows_of_any_stride_equal_a_loop_over_targets(model, folder, tmp_path, context, stride):
    how = {"unit": "windows", "context": context, "stride": stride, "batch_size": 3, "progress": False, "report": False}
    run = vitscope.analyze(model, folder, ["perplexity"], tmp_path / "run", **how)
    table = run.table("perplexity").set_index("metric")
    names = sorted(TEXTS)
    losses = {n: one_by_one(model, model.preprocess.encode(TEXTS[n], special=False), context, stride) for n in names}
    every = [x for n in names for x in losses[n]]
    assert table.loc["perplexity", "value"] == pytest.approx(math.exp(sum(every) / len(every)), rel=1e-5)
    assert table.loc["perplexity", ["unit", "context", "stride", "bos", "targets", "n"]].tolist() == [
        "windows", context, stride, False, len(every), 3,
    ]  # fmt: skip
    documents = run.table("perplexity_documents")
    expected = [math.exp(sum(losses[n]) / len(losses[n])) for n in names]
    assert sorted(documents["perplexity"]) == pytest.approx(sorted(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["lm-small", "symlm"])
@torch.no_grad()
def test_stride_1_over_2000_tokens_is_the_published_loop_over_targets(name, tmp_path):
    draw = np.random.default_rng(0)
    text = "".join(draw.choice(list("abcdefgh \n"), 2000))
    (tmp_path / "text.txt").write_text(text)
    sizes = {"depth": 1, "embed_dim": 16, "num_heads": 2, **({"cutoffs": [5]} if name == "symlm" else {})}
    model = vitscope.open_model(name, "random", num_classes=11, context=8, **sizes)
    model.preprocess = preprocess_of(build_vocabulary("characters", [text]), 8, "characters")
    for weight in model.module.parameters():
        weight.normal_(std=0.3)  # far from guessing evenly
    how = {"unit": "windows", "context": 8, "stride": 1, "progress": False, "report": False}
    row = vitscope.evaluate(model, tmp_path / "text.txt", tmp_path / "run", **how).table("perplexity").iloc[0]
    tokens = torch.tensor(model.preprocess.encode(text, special=False))
    windows = tokens.unfold(0, 9, 1)  # 8 tokens go in: the first 8 are scored by what follows them, later the last is
    nats = -model(windows[:, :-1]).double().log_softmax(-1).gather(2, windows[:, 1:, None])[..., 0]
    expected = math.exp(float(nats[0].sum() + nats[1:, -1].sum()) / 1999)
    assert (len(tokens), row["targets"], row["stride"]) == (2000, 1999, 1)
    assert row["value"] == pytest.approx(expected, rel=1e-6)


@real
def test_evaluate_is_perplexity_in_windows_and_can_be_done_again(folder, tmp_path):
    how = {"context": 20, "progress": False, "report": False, "bos": True}
    run = vitscope.evaluate(STORIES, folder, tmp_path / "run", **how)
    again = vitscope.rerun(run, out=tmp_path / "again", progress=False, report=False)
    tables = [(r.path / "tables" / "perplexity.csv").read_bytes() for r in (run, again)]
    assert tables[0] == tables[1]
    row = run.table("perplexity").iloc[0]
    assert (row["unit"], row["context"], bool(row["bos"])) == ("windows", 20, True)
    assert "each with BOS" in run.summary["perplexity.perplexity"]["note"]
    assert row["low"] < row["value"] < row["high"]


@real
def test_encoders_pictures_and_single_tokens_are_refused_with_what_to_do(model, folder, tmp_path):
    with pytest.raises(VitscopeError, match="are pictures, and the model takes texts"):
        vitscope.analyze(model, "mnist5k", ["perplexity"], tmp_path / "a", images=2, progress=False)
    vit = vitscope.open_model("small", "random", num_classes=10)
    with pytest.raises(VitscopeError, match=r"no causal|picture"):
        vitscope.analyze(vit, folder, ["perplexity"], tmp_path / "b", progress=False)
    (tmp_path / "short.txt").write_text("a")
    with pytest.raises(VitscopeError, match="nothing to"):
        vitscope.evaluate(model, tmp_path / "short.txt", tmp_path / "c", progress=False)


def test_losses_are_those_of_targets_that_exist_whatever_the_chunk(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    outputs = torch.randn(3, 7, 11, generator=generator)
    targets = torch.randint(-1, 11, (3, 7), generator=generator)
    expected = -outputs.double().log_softmax(-1).gather(-1, targets.clamp_min(0)[..., None])[..., 0]
    expected[targets < 0] = 0
    for chunk in (1, 60, 10**6):
        monkeypatch.setattr("vitscope.tasks.language.CHUNK", chunk)
        nats, right = token_losses(outputs, targets)
        torch.testing.assert_close(nats, expected)
        assert torch.equal(right, (outputs.argmax(-1) == targets) & (targets >= 0))
    task = Language()
    ties = torch.cat([outputs, outputs.round()])  # several are the largest: the first of them is the guess
    wanted = torch.cat([targets, outputs.round().argmax(-1)])
    assert torch.equal(task.right(ties, wanted), ((ties.argmax(-1) == wanted) & (wanted >= 0)).sum(1))
    torch.testing.assert_close(task.item_loss(outputs.double(), targets), expected.sum(1))
    assert torch.equal(task.counted(targets), (targets >= 0).sum(1))
    figures = task.figures(float(expected.sum()), 3, float((targets >= 0).sum()))
    assert figures["perplexity"] == pytest.approx(math.exp(figures["loss"]))


def test_the_interval_over_documents_covers_the_truth_about_19_times_in_20():
    generator = torch.Generator().manual_seed(1)
    covered = 0
    for _ in range(400):
        counts = torch.randint(5, 60, (40,), generator=generator)
        levels = 3 + 0.5 * torch.randn(40, generator=generator, dtype=torch.float64)
        _, low, high = ratio_interval(levels * counts, counts)
        covered += low < 3 < high
    assert 0.9 < covered / 400 < 0.98
    mean, low, high = ratio_interval(torch.tensor([6.0]), torch.tensor([3]))
    assert mean == 2
    assert math.isnan(low)
    assert math.isnan(high)
