"""docs/coming-from.md: our side of every row, and every block, is run."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
import transformers

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "coming-from.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)


def ours() -> list[str]:
    """The code that begins the last cell of each row."""
    rows = [re.split(r" \| ", line.strip("| ")) for line in PAGE.splitlines() if line.startswith("| ")]
    return [re.match(r"`([^`]+)`", row[-1])[1] for row in rows if len(row) == 3 and row[-1].startswith("`")]


def tokenizer():
    from tokenizers import Tokenizer, models, pre_tokenizers

    words = {
        word: i for i, word in enumerate(["<end>", "once", "upon", "a", "time", "there", "was", "an", "old", "lens"])
    }
    built = Tokenizer(models.WordLevel(words, unk_token="<end>"))
    built.pre_tokenizer = pre_tokenizers.Whitespace()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=built, eos_token="<end>", unk_token="<end>")


@pytest.fixture
def names(monkeypatch) -> dict:
    """What the first block makes, of small models with random weights."""
    sizes = {"vocab_size": 10, "n_embd": 16, "n_layer": 2, "n_head": 4, "n_positions": 16}
    config = transformers.GPT2Config(**sizes, bos_token_id=0, eos_token_id=0, attn_implementation="sdpa")
    torch.manual_seed(0)
    found: dict = {"gpt2": transformers.GPT2LMHeadModel(config).eval(), "tokenizer": tokenizer()}
    first = BLOCKS[0]
    for name, small in {
        '"weights.safetensors"': '"random", depth=2, img_size=64',
        '"path/to/gpt2"': "gpt2, tokenizer=tokenizer",
        "224, 224)": "64, 64)",
    }.items():
        assert name in first
        first = first.replace(name, small)
    exec(first, found)
    return found


@pytest.fixture(autouse=True)
def _grad_as_it_was():
    before = torch.is_grad_enabled()
    yield
    torch.set_grad_enabled(before)


def test_every_row_and_block_runs(names):
    code = ours()
    assert len(code) > 25
    for line in code:
        exec(line, names)
    torch.set_grad_enabled(False)
    assert names["labels"][-1] == "head.bias"
    difference = names["logits"][..., 7] - names["logits"][..., 9]
    torch.testing.assert_close(names["shares"].sum(0), difference)
    assert torch.equal(names["x"], names["cache"]["resid_post", 1])
    assert names["seen"] == [0, 1]
    for block in BLOCKS[1:]:
        exec(block, names)
    assert names["restored"].shape == (2, 5)
    assert names["edited"]["resid_post", 1].shape == (2, 17, 192)


def test_the_examples_of_causes_run(names):
    page = (Path(__file__).resolve().parents[2] / "docs" / "causes.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names |= {"model": names["vit"], "labels": torch.tensor([3, 5])}
    exec(example, names)
    assert names["labels"] == ["embedding", "blocks.0", "blocks.1"]
