"""The vocabulary lens against loops over full logits."""

from __future__ import annotations

import math

import pytest
import torch

from vitscope.analyses import analyze, create_analysis, measure
from vitscope.analyses.vocabulary.identifiability import GROUPS
from vitscope.data import load_data
from vitscope.errors import UnsupportedModelError
from vitscope.models import open_model

LENGTHS = (9, 5, 2)


def oracle(model, batch):
    """{(block, point): [(rank, log p) of each target]} from all logits at once, one token after the other."""
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.hook_*")
    found = {}
    for block in range(model.layout.blocks):
        at = f"blocks.{block}.hook_"
        points = {p: cache[at + p] for p in ("resid_pre", "resid_post", "attn_out", "mlp_out")}
        points["resid_mid"] = cache.get(at + "resid_mid", points["resid_pre"] + points["attn_out"])
        for point, x in points.items():
            logits = model.to_class_space(x).detach()
            found[block, point] = [
                (sum(float(v) > float(row[word]) for v in row), float(row.log_softmax(-1)[word]))
                for text, words in zip(logits, batch.targets.tolist())
                for row, word in zip(text, words)
                if word >= 0
            ]
    return found


def one(table, **wanted):
    for column, value in wanted.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


@pytest.mark.parametrize("name", ["llama", "gpt2", "gpt-neox", "opt-350m"])
def test_every_number_is_that_of_a_loop_over_full_logits(open_tiny, batch_of, name):
    model, batch = open_tiny(name), batch_of(LENGTHS)
    analysis = create_analysis("vocabulary.identifiability")
    measure(model, [batch], [analysis])
    tables, expected = analysis.tables(), oracle(model, batch)
    n, level, change = 13, tables["vocabulary_identifiability"], tables["vocabulary_change"]
    for (block, point), values in expected.items():
        if point == "resid_mid" or (point == "resid_pre" and block > 0):
            continue
        row = one(level, block=block, point=point, tokens="all")
        assert row["n_tokens"] == n
        assert row["identifiability"] == pytest.approx(1 - sum(rank for rank, _ in values) / n / 60)
        assert row["rate"] == pytest.approx(100 * sum(rank == 0 for rank, _ in values) / n)
        assert row["log_probability"] == pytest.approx(sum(log_p for _, log_p in values) / n, abs=1e-9)
    for block in range(2):
        pre, mid, post = ([v for _, v in expected[block, f"resid_{p}"]] for p in ("pre", "mid", "post"))
        for point, before, after in (("resid_post", pre, post), ("attn_out", pre, mid), ("mlp_out", mid, post)):
            row = one(change, block=block, point=point, tokens="all")
            assert row["change"] == pytest.approx(sum(after) / n - sum(before) / n, abs=1e-9)
            assert row["rose"] == pytest.approx(100 * sum(b > a for a, b in zip(before, after)) / n)


def test_a_token_is_known_from_where_it_stays_the_first_guess(model, batch_of):
    batch = batch_of((30, 30))
    with torch.no_grad():  # targets of our own: what is guessed after block 0, after block 1, or by the embedding
        _, cache = model.run_with_cache(batch.inputs, "blocks.*.hook_resid_*")
        stages = [cache[f"blocks.{b}"] for b in ("0.hook_resid_pre", "0.hook_resid_post", "1.hook_resid_post")]
        guesses = torch.stack([model.to_class_space(x).argmax(-1) for x in stages])  # (3, B, N)
    batch.targets = guesses[torch.arange(60).view(2, 30) % 3, torch.arange(2)[:, None], torch.arange(30)]
    analysis = create_analysis("vocabulary.identifiability")
    measure(model, [batch], [analysis])
    counts = dict.fromkeys(["embedding", "0", "1", "never"], 0)
    for right in (guesses == batch.targets).flatten(1).T.tolist():
        since = next((i for i in range(3) if all(right[i:])), 3)
        counts[list(counts)[since]] += 1
    assert min(counts["never"], counts["1"]) > 0
    table = analysis.tables()["vocabulary_known"]
    table = table[table["tokens"] == "all"]
    assert dict(zip(table["known_from"], table["rate"] * 0.6)) == pytest.approx(counts)
    assert table["known"].iloc[-1] == pytest.approx(100 - table["rate"].iloc[-1])
    assert analysis.summary()["known"].value == pytest.approx(100 - counts["never"] / 0.6)


def test_a_text_alone_and_among_longer_ones_gives_the_same_numbers(model, batch_of):
    together, alone = (create_analysis("vocabulary.identifiability") for _ in range(2))
    measure(model, [batch_of((5, 17, 3))], [together])
    measure(model, [batch_of((5,))], [alone])
    for key, sums in alone.sums.items():
        documents = sums.shape.index(1000)
        assert torch.allclose(sums.select(documents, 0), together.sums[key].select(documents, 0), atol=1e-5, rtol=0)


def test_parts_merge_to_the_whole(model, batch_of):
    batches = [batch_of((7, 4), 0), batch_of((6, 12), 2, 1), batch_of((3, 3), 4, 2)]
    whole, first, rest = (create_analysis("vocabulary.identifiability") for _ in range(3))
    for analysis, part in ((whole, batches), (first, batches[:1]), (rest, batches[1:])):
        measure(model, part, [analysis])
    first.merge(rest)
    for key, sums in whole.sums.items():
        assert torch.equal(sums, first.sums[key])
    assert whole.tables()["vocabulary_known"].equals(first.tables()["vocabulary_known"])


def test_branches_can_be_left_out_and_a_batch_without_targets_counts_nothing(open_tiny, batch_of):
    model, batch = open_tiny("llama"), batch_of(LENGTHS)
    full, brief = (
        create_analysis("vocabulary.identifiability"),
        create_analysis("vocabulary.identifiability", branches=False),
    )
    measure(model, [batch, batch_of((1, 1), 3)], [full, brief])
    a, b = full.tables(), brief.tables()
    assert set(b["vocabulary_identifiability"]["point"]) == {"resid_pre", "resid_post"}
    assert a["vocabulary_change"].equals(b["vocabulary_change"])
    empty = create_analysis("vocabulary.identifiability")
    measure(model, [batch_of((1,))], [empty])
    assert empty.tables() == {}
    assert empty.summary() == {}


def test_kinds_of_tokens_add_up_to_all(open_tiny, batch_of):
    analysis = create_analysis("vocabulary.identifiability")
    measure(open_tiny("llama"), [batch_of(LENGTHS)], [analysis])
    table = analysis.tables()["vocabulary_identifiability"]
    for _, rows in table.groupby(["block", "point"]):
        kinds = rows[rows["tokens"].isin(GROUPS)]
        assert (kinds["log_probability"] * kinds["n_tokens"]).sum() == pytest.approx(
            float((rows["log_probability"] * rows["n_tokens"])[rows["tokens"] == "all"].iloc[0])
        )
    assert set(table[table["tokens"] == "first"]["n_tokens"]) == {3}


@pytest.mark.parametrize("name", ["vocabulary.identifiability", "vocabulary.knockout"])
@pytest.mark.parametrize(
    ("family", "reason"),
    [("bert", "no causal language model"), ("llama without head", "cannot be read as words")],
)
def test_models_that_foresee_nothing_are_refused_with_the_reason(open_tiny, name, family, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        create_analysis(name).start(open_tiny(family))


@pytest.mark.parametrize("words", [7, 60])
def test_the_likeliest_words_are_those_of_a_sorted_softmax(model, words):
    x = torch.randn(2, 5, 32, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    numbers, log_p = model.top_words(x, 3, tokens=4, words=words)
    expected = model.to_class_space(x).log_softmax(-1).topk(3, -1)
    assert torch.equal(numbers, expected.indices)
    assert torch.allclose(log_p, expected.values, atol=1e-12)
    assert torch.equal(model.top_words(x[0, 1], 3)[0], expected.indices[0, 1])  # of one token


def test_stories_are_known_as_well_as_perplexity_says_and_the_gallery_gets_its_texts(shared, tmp_path):
    model = open_model(str(shared / "weights" / "stories260K"))
    data = load_data("pydoc", images=3, unit="windows", context=32)
    run = analyze(
        model, data, ["perplexity", "vocabulary.identifiability"], tmp_path / "run", progress=False, gallery=2
    )
    perplexity = run.table("perplexity").set_index("metric")["value"]
    last = one(run.table("vocabulary_identifiability"), block=4, point="resid_post", tokens="all")
    assert last["rate"] == pytest.approx(perplexity["accuracy"])
    assert last["log_probability"] == pytest.approx(-math.log(perplexity["perplexity"]), abs=1e-5)
    assert last["rate_low"] < last["rate"] < last["rate_high"]
    texts, maps, guesses = (run.table(name) for name in ("texts", "maps_vocabulary", "vocabulary_topk"))
    assert run.table("images")["image"].tolist() == texts["image"].unique().tolist() == maps["image"].unique().tolist()
    first = texts[texts["image"] == 0]
    assert first["word"].tolist()[1:] == first["target_word"].tolist()[:-1]
    cells = maps[(maps["image"] == 0) & (maps["map"] == "log-probability of the next token") & (maps["block"] == 4)]
    best = guesses[(guesses["image"] == 0) & (guesses["block"] == 4) & (guesses["place"] == 0)]
    for token, value in zip(cells["col"], cells["value"]):
        guess = best[best["token"] == token].iloc[0]
        right = guess["guess"] == first["target_word"].iloc[token]
        assert value == pytest.approx(guess["log_probability"], abs=1e-4) if right else value < guess["log_probability"]
    page = (tmp_path / "run" / "report.html").read_text()
    assert "At which block is the next token known?" in page
    assert 'id="sentences"' in page


def test_a_killed_run_goes_on_to_the_same_tables(shared, tmp_path, monkeypatch):
    from vitscope.analyses.vocabulary.identifiability import Identifiability

    model = open_model(str(shared / "weights" / "stories260K"))
    data = load_data("pydoc", images=3, unit="windows", context=32)
    how = {"progress": False, "batch_size": 4, "save_every": 0.0, "report": False}
    whole = analyze(model, data, ["vocabulary.identifiability"], tmp_path / "whole", **how)
    with monkeypatch.context() as patch:
        own = Identifiability.end_batch

        def killed(self, batch):
            if batch.number == 2:
                raise KeyboardInterrupt
            own(self, batch)

        patch.setattr(Identifiability, "end_batch", killed)
        with pytest.raises(KeyboardInterrupt):
            analyze(model, data, ["vocabulary.identifiability"], tmp_path / "cut", **how)
    resumed = analyze(model, data, ["vocabulary.identifiability"], tmp_path / "cut", **how)
    for name in whole.list_tables():
        assert resumed.table(name).equals(whole.table(name)), name
