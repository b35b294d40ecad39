from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from vitscope.errors import DataError, UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models import open_model
from vitscope.models.naming import check_model_name, is_text_model
from vitscope.models.text_preprocess import TextPreprocess

sys.path.insert(0, str(Path(__file__).parents[1]))
from text_models import build, texts

STORY = "Once upon a time, there was a little girl named Lily. She liked to play."


@pytest.fixture(scope="module")
def stories(shared):
    return shared / "weights" / "stories260K"


@pytest.fixture(scope="module")
def model(stories):
    return open_model(stories)


def tokenizer(words: int = 60):
    """A tokenizer of words: [CLS] a text [SEP]."""
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    vocabulary = {word: i for i, word in enumerate([*special, *(f"w{i}" for i in range(words - len(special)))])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=backend, pad_token="[PAD]", unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]"
    )


def folder(path, family, words=60):
    build(family).save_pretrained(path)
    tokenizer(words).save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def bert(tmp_path_factory):
    return folder(tmp_path_factory.mktemp("text") / "tiny-bert", "bert")


# --- a real language model ----------------------------------------------------------------------------------------


def test_a_folder_opens_and_a_run_can_find_it_again(model, stories):
    assert repr(model) == (
        "Model(stories260K: Llama, 5 blocks x 8 heads (4 of keys) of 8, width 64; up to 512 tokens, causal, 512 words)"
    )
    assert model.source["weights"] == "model.safetensors"
    assert len(model.source["sha256"]) == 64
    assert model.source["folder"] == str(stories.absolute())
    assert not model.module.training
    assert model.notes == []
    check_model_name(str(stories))


@torch.no_grad()
def test_strings_go_in_and_logits_are_those_of_the_wrapped_model(model):
    inputs = model.preprocess.pad(model.preprocess.encode_all([STORY, "Once upon"]))
    expected = model.module(**inputs, use_cache=False).logits
    assert torch.equal(model([STORY, "Once upon"]), expected)
    logits, cache = model.run_with_cache([STORY, "Once upon"])
    assert torch.equal(logits, expected)
    assert cache["blocks.2.attn.hook_k"].shape[1] == 8
    alone, _ = model.run_with_cache(STORY, "blocks.*.attn.hook_z")
    torch.testing.assert_close(alone[0], logits[0], rtol=1e-4, atol=1e-4)
    seen = []
    model.stream(STORY, "blocks.*.hook_resid_post", lambda block, points: seen.append(block))
    assert seen == [0, 1, 2, 3, 4]


@torch.no_grad()
def test_tokens_have_names_and_the_model_tells_the_story(model):
    assert model.tokens("Once upon a time") == ["<s>", " Once", " upon", " a", " time"]
    assert model.preprocess.words(model("Once upon a")[0, -1:].argmax(-1)) == [" time"]


@torch.no_grad()
def test_rank_and_log_probability_are_those_of_all_logits(model):
    ids = torch.tensor([model.preprocess.encode(STORY)])
    logits, cache = model.run_with_cache(ids)
    x, targets = cache["blocks.4.hook_resid_post"][:, :-1], ids[:, 1:]
    true = logits[:, :-1].gather(-1, targets[..., None])
    for pieces in ({}, {"tokens": 3, "words": 100}):
        rank, log_probability = model.rank_and_log_probability(x, targets, **pieces)
        assert torch.equal(rank, (logits[:, :-1] > true).sum(-1).float())
        torch.testing.assert_close(
            log_probability, logits[:, :-1].log_softmax(-1).gather(-1, targets[..., None])[..., 0]
        )
    assert (rank == 0).float().mean() > 0.8
    with pytest.raises(VitscopeError, match="One word per token"):
        model.rank_and_log_probability(x, targets[:, 1:])


def test_random_weights_come_from_the_seed(stories, model):
    first, again, other = (open_model(stories, "random", seed=seed) for seed in (1, 1, 2))
    weights = [m.module.lm_head.weight for m in (first, again, other, model)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])
    assert not torch.equal(weights[0], weights[3])
    assert first.source["weights"] == "random, seed 1"
    assert first.num_classes == 512


# --- heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "electra", "distilbert", "modernbert", "gpt2", "gemma3", "opt-350m"]
)
@torch.no_grad()
def test_a_saved_folder_opens_with_its_own_head(tmp_path, family):
    model = open_model(folder(tmp_path / family, family))
    assert torch.equal(model(texts()), build(family)(**texts()).logits)
    assert model.num_classes == 60
    assert model.why_no_class_space() is None
    x, targets = torch.randn(2, 3, 32), torch.randint(0, 60, (2, 3))
    rank, log_probability = model.rank_and_log_probability(x, targets, words=7)
    logits = model.to_class_space(x)
    assert torch.equal(rank, (logits > logits.gather(-1, targets[..., None])).sum(-1).float())
    torch.testing.assert_close(log_probability, logits.log_softmax(-1).gather(-1, targets[..., None])[..., 0])


@torch.no_grad()
def test_a_head_that_would_be_made_up_is_left_out_and_the_vocabulary_refused(tmp_path):
    model = open_model(folder(tmp_path / "headless", "bert without head"))
    assert model.num_classes == 0
    assert "no vocabulary head" in model.notes[0]
    with pytest.raises(UnsupportedModelError, match="make up a random one"):
        model.to_class_space(torch.zeros(1, 32))
    with pytest.raises(UnsupportedModelError, match="make up a random one"):
        model.rank_and_log_probability(torch.zeros(1, 32), torch.zeros(1, dtype=torch.int64))
    assert model("w1 w2").shape == (1, 4, 32)
    with pytest.raises(VitscopeError, match="no norm behind its last block"):
        model.run_with_cache("w1", "ln_final.hook_normalized")


@torch.no_grad()
def test_a_pickled_state_dict_opens_and_one_that_runs_code_does_not(tmp_path, bert):
    place = tmp_path / "pickled"
    shutil.copytree(bert, place)
    state = build("bert").state_dict()
    (place / "model.safetensors").unlink()
    torch.save(state, place / "pytorch_model.bin")
    model = open_model(place)
    assert model.source["weights"] == "pytorch_model.bin"
    assert torch.equal(model("w1 w2"), open_model(bert)("w1 w2"))
    torch.save({**state, "run": print}, place / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="cannot be opened"):
        open_model(place)


# --- tokens -------------------------------------------------------------------------------------------------------


def test_text_becomes_tokens_whole_and_padded_at_the_right(bert):
    model = open_model(bert, length=6)
    recipe = model.preprocess
    assert isinstance(recipe, TextPreprocess)
    assert (recipe.bos, recipe.eos, recipe.pad_id, recipe.separators, recipe.length) == (2, 3, 0, (3,), 6)
    assert model.layout.separators == (3,)
    assert recipe.encode("w0 w1") == [2, 4, 5, 3]
    assert recipe.encode("w0 w1", special=False) == [4, 5]
    assert len(recipe.encode("w0 " * 100)) == 102
    assert recipe.encode_all([]) == []
    batch = recipe.pad([[2, 4, 3], [2, 3]])
    assert {name: part.tolist() for name, part in batch.items()} == {
        "input_ids": [[2, 4, 3], [2, 3, 0]],
        "attention_mask": [[1, 1, 1], [1, 1, 0]],
    }
    assert model.tokens("w0 nothing") == ["[CLS]", "w0", "[UNK]", "[SEP]"]
    assert recipe.to_dict() == {
        "tokenizer": type(recipe.tokenizer).__name__, "vocabulary": 60, "length": 6, "source": "tokenizer of tiny-bert",
    }  # fmt: skip
    with pytest.raises(DataError, match="has 7 tokens, and the model takes 6"):
        model("w0 w1 w2 w3 w4")
    with pytest.raises(DataError, match="no tokens"):
        recipe.pad([[]])
    with pytest.raises(VitscopeError, match="1 to 40 tokens"):
        open_model(bert, length=41)


def test_byte_level_tokens_are_shown_as_text():
    from tokenizers import decoders

    backend = Tokenizer(models.BPE({"\u0120the": 0, "caf": 1, "\u00c3\u00a9": 2, "<|end|>": 3}, []))
    backend.decoder = decoders.ByteLevel()
    words = transformers.PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<|end|>")
    assert TextPreprocess(words, 8).words([0, 1, 2, 3]) == [" the", "caf", "\u00e9", "<|end|>"]


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path):
    with pytest.raises(UnsupportedModelError, match=r"'w57' the number 61.* 0 to 59"):
        open_model(folder(tmp_path / "wrong", "bert", words=62))


@torch.no_grad()
def test_a_module_opens_with_a_tokenizer_or_without():
    module = build("llama")
    bare = open_model(module)
    assert bare(torch.tensor([[5, 6]])).shape == (1, 2, 60)
    with pytest.raises(DataError, match="give one with the module"):
        bare("w1")
    with pytest.raises(DataError, match="without a tokenizer"):
        bare.tokens("w1")
    assert open_model(module, tokenizer=tokenizer())("w1 w2").shape == (1, 4, 60)
    with pytest.raises(VitscopeError, match="img_size cannot be given"):
        open_model(module, img_size=3)


# --- what is refused ----------------------------------------------------------------------------------------------


def test_pictures_and_texts_do_not_go_into_each_others_models(model):
    with pytest.raises(DataError, match="reads text: give strings"):
        model(torch.zeros(1, 3, 8, 8))
    pictures = open_model("small", "random")
    with pytest.raises(DataError, match="does not read text"):
        pictures("a text")
    with pytest.raises(DataError, match="does not read text"):
        pictures.run_with_cache(["a", "b"])
    with pytest.raises(DataError, match="no tokens with names"):
        pictures.tokens("a")
    with pytest.raises(DataError, match="not with list"):
        model([1, 2])


def test_a_model_that_wants_its_own_code_is_refused(tmp_path, bert):
    place = tmp_path / "code"
    shutil.copytree(bert, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "auto_map": {"AutoModel": "own.Model"}}))
    (place / "own.py").write_text("raise SystemExit('this ran')")
    with pytest.raises(UnsupportedModelError, match="trust_remote_code"):
        open_model(place)


def test_damaged_and_foreign_folders_are_refused_in_one_line(tmp_path, bert):
    for name, change, error in (
        ("weights", lambda f: (f / "model.safetensors").write_bytes(b"no"), "cannot be opened"),
        ("tokenizer", lambda f: (f / "tokenizer.json").write_text("{"), "cannot be opened"),
        ("absent", lambda f: (f / "model.safetensors").unlink(), "cannot be opened"),
        ("kind", lambda f: (f / "config.json").write_text('{"model_type": "albert"}'), "again and again"),
        ("unknown", lambda f: (f / "config.json").write_text('{"model_type": "nosuch"}'), "nosuch"),
    ):
        place = tmp_path / name
        shutil.copytree(bert, place)
        change(place)
        with pytest.raises(VitscopeError, match=error) as caught:
            open_model(place)
        assert "\n" not in str(caught.value)


def test_weights_of_another_architecture_are_refused(tmp_path, bert):
    place = tmp_path / "deeper"
    shutil.copytree(bert, place)
    config = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    with pytest.raises(WeightsError, match="16 tensors are missing"):
        open_model(place)


def test_options_that_are_not_for_text_are_refused(bert):
    with pytest.raises(VitscopeError, match="no option depth"):
        open_model(bert, depth=3)
    with pytest.raises(VitscopeError, match="ViTs alone"):
        open_model(bert, attention="rpc")
    with pytest.raises(VitscopeError, match="its own weights"):
        open_model(bert, "other.safetensors")


def test_a_hub_name_without_a_net_says_what_to_give_instead(monkeypatch):
    import huggingface_hub

    def no_net(*args, local_files_only=False, **options):
        if local_files_only:
            raise huggingface_hub.errors.LocalEntryNotFoundError("not here")
        raise OSError("no net")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", no_net)
    assert is_text_model("somebody/tiny-model")
    with pytest.raises(WeightsError, match="no net, give a folder"):
        open_model("somebody/tiny-model")


def test_without_transformers_the_extra_is_named(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(VitscopeError, match=r"pip install 'vitscope\[text\]'"):
        open_model(bert)
