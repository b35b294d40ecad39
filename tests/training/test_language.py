"""A language model of our own in the one training loop."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import numpy as np
import pytest
import torch

import launch
from vitscope import analyze, open_model
from vitscope.errors import DataError, UnsupportedModelError, VitscopeError
from vitscope.training import TrainOptions, recipe_options, train
from vitscope.training.checkpoint import LAST, load_checkpoint
from vitscope.training.setup import build_model, open_data
from vitscope.training.texts import open_texts

pytest.importorskip("transformers")

SIZES = {"depth": 2, "embed_dim": 32, "num_heads": 2}
WORDS = ("a cat sat", "a dog ran", "the cat ran", "the dog sat")
# A process that is killed in the middle of an epoch, where STEP is given, or one of two.
SCRIPT = """
import json, os, signal, sys
from vitscope.training import TrainOptions, train
from vitscope.training.loop import Training

stop, step = int(sys.argv[2]), Training.step

def killed(self, at, batch):
    if at == stop:
        os.kill(os.getpid(), signal.SIGKILL)
    step(self, at, batch)

Training.step = killed
for options in json.loads(sys.argv[1]):
    train(TrainOptions(**options))
"""


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    """Sentences in a random order, in two files: after 'a' or 'the' comes one of two, what follows is one of two."""
    folder = tmp_path_factory.mktemp("corpus")
    draw = np.random.default_rng(0)
    for name, lines in (("train", 900), ("test", 90)):
        (folder / name).mkdir()
        text = "\n".join(WORDS[i] for i in draw.integers(0, 4, lines)) + "\n"
        (folder / name / "text.txt").write_text(text)
    return folder


@pytest.fixture
def tiny(corpus: Path, tmp_path: Path):
    def options(out: str = "run", **changes) -> TrainOptions:
        how = {"epochs": 2, "batch_size": 8, "lr": 1e-2, "warmup_epochs": 0.2, "weight_decay": 0.0, "progress": False}
        text = {"data": str(corpus), "model": "lm-small", "model_options": SIZES, "vocabulary": "words", "context": 12}
        return TrainOptions(str(tmp_path / out), **{**how, **text, "device": "cpu", **changes})

    return options


def weights(run) -> dict[str, torch.Tensor]:
    return load_checkpoint(Path(run.path if hasattr(run, "path") else run) / "checkpoints" / LAST).weights


def in_another_process(*options: TrainOptions, stop: int = -1, world: int = 1) -> int:
    told = json.dumps([{**o.to_config(), "out": str(o.out), "progress": False} for o in options])
    threads = 1 if world > 1 else torch.get_num_threads()  # bits are those of as many threads
    return launch.run("-c", SCRIPT, told, stop, world=world, env={"OMP_NUM_THREADS": str(threads)}).returncode


def test_it_learns_the_text_and_is_opened_again_with_its_vocabulary(tiny, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    probes = ("perplexity", "vocabulary.identifiability", "attention", "kpca.spectrum")
    run = train(tiny(epochs=4, probe=probes, probe_images=20, probe_every=4, track=("tensorboard",)))
    table = run.table("training")
    events = EventAccumulator(str(next((run.path / "tracking").rglob("events.*")).parent))
    events.Reload()
    curve = [event.value for event in events.Scalars("test_perplexity")]
    assert curve == pytest.approx(table["test_perplexity"].tolist(), rel=1e-6)
    # what is left to guess: one of two, one of two, one of two, and nothing at the line's end
    assert table["test_perplexity"].iloc[-1] < 1.05 * math.exp(3 * math.log(2) / 4)
    assert table["train_loss"].iloc[0] > table["train_loss"].iloc[-1]
    assert {"epoch", "split"} <= set(run.table("probe_perplexity").columns)
    assert run.table("probe_perplexity")["epoch"].unique().tolist() == [0, 4]
    model = open_model(run.path)
    assert model.tokens("the cat\n") == ["the", "cat", "<eos>"]
    assert model(["a dog", "the"]).shape == (2, 2, 8)
    options = tiny(epochs=4)
    test = open_texts(options)[1]
    judged = analyze(model, test, ["perplexity"], tmp_path / "analysis", progress=False)
    value = judged.table("perplexity").set_index("metric")["value"]["perplexity"]
    assert value == pytest.approx(table["test_perplexity"].min(), rel=1e-5)  # the best epoch was opened


def test_held_out_perplexity_is_that_of_a_loop_over_targets(tiny):
    run = train(tiny(epochs=1))
    model, windows = open_model(run.path), open_texts(tiny())[1]
    tokens = model.preprocess.encode((Path(tiny().data) / "test/text.txt").read_text(), special=False)
    nats, context = [], 12
    for start in range(0, len(tokens) - 1, context - 1):
        window = tokens[start : start + context]
        with torch.no_grad():
            log_p = model(torch.tensor([window]))[0].double().log_softmax(-1)
        nats += [-float(log_p[i, window[i + 1]]) for i in range(len(window) - 1)]
    assert len(nats) == len(tokens) - 1 == sum(w.stop - w.first for w in map(windows.window, range(len(windows))))
    expected = math.exp(sum(nats) / len(nats))
    assert run.table("training")["test_perplexity"].iloc[0] == pytest.approx(expected, rel=1e-6)


def test_streams_are_the_text_cut_into_equal_pieces(tiny):
    train_data = open_data(tiny()).train
    text = (Path(tiny().data) / "train/text.txt").read_text()
    tokens = train_data.preprocess.encode(text, special=False)
    streams = np.array(tokens[: len(tokens) // 8 * 8]).reshape(8, -1)
    batches = list(train_data.learn(None, 8, seed=0, epoch=0))
    assert np.array_equal(np.concatenate([b.inputs.numpy() for b in batches], 1), streams[:, :-1])
    assert np.array_equal(np.concatenate([b.targets.numpy() for b in batches], 1), streams[:, 1:])
    assert len(train_data) == len(batches) * 8
    halves = [list(train_data.learn(None, 4, rank=rank, world=2, start=3)) for rank in (0, 1)]
    for whole, first, second in zip(batches[3:], *halves, strict=True):
        assert torch.equal(whole.inputs, torch.cat([first.inputs, second.inputs]))
        assert torch.equal(whole.indices, torch.cat([first.indices, second.indices]))


def test_a_killed_run_ends_with_the_bits_of_a_straight_one(tiny):
    how = {"model_options": {**SIZES, "dropout": 0.1}, "checkpoint_steps": 5, "epochs": 1}
    straight = train(tiny("straight", **how))
    killed = tiny("killed", **how)
    assert in_another_process(killed, stop=13) == -signal.SIGKILL
    threads = torch.get_num_threads()
    again = train(killed)
    assert torch.get_num_threads() == threads
    mine, other = weights(straight), weights(again)
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_two_processes_learn_what_one_learns_also_sharded_and_after_a_kill(tiny):
    published = {**SIZES, "mlp_dim": 32, "cutoffs": [3, 6], "dropout": 0.0}
    hows = [{"checkpoint_steps": 5}, {"model": "symlm", "model_options": published}]
    hows = [{**how, "epochs": 1, "dtype": "float64"} for how in hows]  # Adam makes much of what float32 rounds away
    two = [tiny(f"two-{i}", **how) for i, how in enumerate(hows)]
    parts = [tiny(f"parts-{i}", sharded=True, **how) for i, how in enumerate(hows)]
    assert in_another_process(two[0], stop=13, world=2) != 0
    assert not (Path(two[0].out) / "report.html").exists()
    assert in_another_process(*two, *parts, world=2) == 0
    for i, how in enumerate(hows):
        mine = weights(train(tiny(f"one-{i}", **how)))
        for other in (weights(two[i].out), weights(parts[i].out)):
            for name in mine:
                torch.testing.assert_close(mine[name], other[name], rtol=0, atol=1e-7)


def test_the_published_model_learns_with_every_attention_and_tells_no_first_guess(tiny):
    sizes = {**SIZES, "mlp_dim": 32, "cutoffs": [3, 6]}
    attention = "symmetric;rpc:layers=0,iterations=2,lambda=4,variant=paper"
    run = train(tiny(model="symlm", model_options=sizes, attention=attention, epochs=2))
    table = run.table("training")
    assert table["test_perplexity"].iloc[-1] < 3
    assert "test_accuracy" not in table
    assert open_model(run.path)(["a dog"]).exp().sum(-1).tolist()[0] == pytest.approx([1, 1], abs=1e-5)


def test_training_goes_on_from_a_run_with_its_vocabulary(tiny):
    first = train(tiny("first", epochs=1))
    second = tiny("second", weights=first.path, vocabulary="", lr=1e-9, min_lr=0.0, warmup_lr=0.0, epochs=1)
    assert train(second).table("training")["test_loss"].iloc[0] == pytest.approx(
        first.table("training")["test_loss"].iloc[0], abs=1e-4
    )
    with pytest.raises(VitscopeError, match="knows its vocabulary"):
        open_data(tiny("third", weights=first.path))


@pytest.mark.parametrize(
    ("changes", "kind", "words"),
    [
        ({"model_options": {**SIZES, "num_classes": 5}}, UnsupportedModelError, "embeddings for 0 to 4"),
        ({"model_options": {**SIZES, "context": 8}}, VitscopeError, "longer than the 8 positions"),
        ({"batch_size": 4000}, DataError, "3,600 tokens, too few for a batch of 4,000"),
        ({"data": "mnist5k"}, DataError, "are pictures, and lm-small reads text"),
        ({"augment": "flip"}, VitscopeError, "changes pictures"),
        ({"attention": "rpc:layers=0"}, VitscopeError, "use variant='paper'"),
        ({"model": "vit_tiny_patch16_224", "model_options": {}}, DataError, "are texts, and vit_tiny"),
    ],
)
def test_what_cannot_be_learned_is_refused_before_anything_is_written(tiny, changes, kind, words):
    with pytest.raises(kind, match=words):
        train(tiny(**changes))
    assert not Path(tiny().out).exists()


def test_the_recipes_have_the_published_settings():
    o = recipe_options("symlm")
    assert (o.lr, o.optimizer, o.clip_grad, o.warmup_steps) == (2.5e-4, "adam", 0.25, 2000)
    assert (o.batch_size, o.context, o.vocabulary, o.schedule) == (96, 256, "words", "cosine")
    steps = -(-(103_227_021 // 96 - 1) // 256)
    assert abs(o.epochs * steps - 500_000) < steps
    assert recipe_options("quick").to_config().keys().isdisjoint({"context", "vocabulary", "warmup_steps"})


def test_a_new_model_has_the_words_and_positions_of_the_vocabulary(tiny):
    data = open_data(tiny())
    model = build_model(tiny(), data.train)
    assert (model.num_classes, model.layout.tokens, model.layout.separators) == (8, 12, (0,))
