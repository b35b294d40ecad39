from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import transformers

from vitscope.architectures import TextLayout
from vitscope.architectures.families import check_model
from vitscope.architectures.layout import derive_layout
from vitscope.architectures.text_rows import HEADS, REFUSED, check_configuration
from vitscope.errors import UnsuitableDataError, UnsupportedModelError

sys.path.insert(0, str(Path(__file__).parents[1]))
from text_models import FAMILIES, build


@pytest.mark.parametrize("name", FAMILIES)
def test_sizes_are_read_off_the_model(name):
    layout = derive_layout(build(name))
    assert isinstance(layout, TextLayout)
    assert (layout.blocks, layout.heads, layout.head_dim, layout.width) == (2, 4, 8, 32)
    assert layout.tokens == 40  # of RoBERTa's 42 positions the first two are never used
    assert layout.causal == any(kind in name for kind in ("gpt", "llama", "qwen", "mistral", "gemma", "opt"))
    grouped = any(kind in name for kind in ("llama", "qwen", "mistral", "gemma"))
    assert layout.key_heads == (2 if grouped else 4)


def test_scales_that_are_not_one_over_sqrt_d():
    assert derive_layout(build("bert")).scale(1) == 8**-0.5
    assert derive_layout(build("gpt2")).scale(1) == 8**-0.5 / 2
    assert derive_layout(build("opt")).scale(0) == 1.0
    assert derive_layout(build("gemma3")).scale(0) == 20**-0.5


def test_windows_say_how_far_a_token_sees():
    assert derive_layout(build("mistral")).windows == (4, 4)
    assert derive_layout(build("gemma3")).windows == (4, None)
    assert derive_layout(build("llama")).windows == (None, None)


def layout(**values):
    return TextLayout(0, 0, (1, 40), (1, 1), 2, 4, 8, 32, sequence=True, key_heads=4, **values)


def test_groups_are_first_separator_and_text_and_padding_is_in_none():
    ids = torch.tensor([[2, 7, 2, 8, 2], [1, 9, 2, 2, 2]])
    valid = torch.tensor([[True] * 5, [True, True, True, False, False]])
    batch = SimpleNamespace(inputs={"input_ids": ids}, valid=valid)
    groups = {name: inside.int().tolist() for name, inside in layout(separators=(2,)).groups(batch).items()}
    assert groups == {
        "first": [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]],
        "separator": [[0, 0, 1, 0, 1], [0, 0, 1, 0, 0]],
        "text": [[0, 1, 0, 1, 0], [0, 1, 0, 0, 0]],
    }
    assert torch.equal(sum(inside.int() for inside in layout().groups(batch).values()), valid.int())


def test_a_text_has_no_image_tokens():
    with pytest.raises(UnsupportedModelError, match=r"layout\.groups"):
        layout().image  # noqa: B018
    with pytest.raises(UnsupportedModelError, match=r"layout\.groups"):
        layout().spans  # noqa: B018
    with pytest.raises(UnsuitableDataError, match="input_ids"):
        layout().groups(SimpleNamespace(inputs=torch.zeros(1, 3, 8, 8), valid=None))


@pytest.mark.parametrize(
    ("config", "reason"),
    [
        ("LongformerConfig", "windows of its own"),
        ("LukeConfig", "entities"),
        ("MPNetConfig", "relative positions"),
        ("DebertaConfig", "content and position"),
        ("DebertaV2Config", "content and position"),
        ("AlbertConfig", "again and again"),
        ("T5Config", "encoder and a decoder"),
        ("GPTNeoConfig", "scaled_dot_product_attention"),
        ("MixtralConfig", "mixtures of experts"),
        ("Qwen2MoeConfig", "mixtures of experts"),
        ("OlmoeConfig", "mixtures of experts"),
        ("Gemma3Config", "text model alone"),
        ("FalconConfig", "vitscope knows the text models bert"),
    ],
)
def test_what_cannot_be_read_right_is_refused_with_the_reason(config, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        check_configuration(getattr(transformers, config)())


def test_a_refused_module_says_why():
    config = transformers.AlbertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8, embedding_size=8
    )
    with pytest.raises(UnsupportedModelError, match="again and again"):
        check_model(transformers.AlbertModel(config))


@pytest.mark.parametrize(
    ("values", "reason"),
    [
        ({"add_cross_attention": True, "is_decoder": True}, "second text"),
        ({"chunk_size_feed_forward": 2}, "piece by piece"),
        ({"attn_implementation": "eager"}, "attn_implementation='sdpa'"),
    ],
)
def test_a_configuration_that_computes_in_another_way_is_refused(values, reason):
    with pytest.raises(UnsupportedModelError, match=reason):
        check_configuration(transformers.BertConfig(**values))


def test_no_kind_is_both_known_and_refused():
    assert not HEADS.keys() & REFUSED.keys()
