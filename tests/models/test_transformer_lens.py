"""Attribution and patching against TransformerLens, which computes GPT-2 by code of its own: `make test-lens`."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers

import vitscope

try:
    from transformer_lens import HookedTransformer, HookedTransformerConfig, patching
    from transformer_lens.pretrained.weight_conversions import convert_gpt2_weights
except ImportError:  # not there, or from 4.0 on, which wraps the same module of transformers instead
    pytest.skip("transformer_lens 3 is not installed: `make test-lens` has it", allow_module_level=True)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
LAYERS, HEADS, WIDTH, WORDS, TOKENS = 3, 4, 32, 60, 7
CLOSE = 1e-6


@pytest.fixture(scope="module")
def both() -> tuple[vitscope.Model, Any]:
    """The same random weights in vitscope and, unfolded, in TransformerLens; float64."""
    torch.manual_seed(0)
    sizes = {"vocab_size": WORDS, "n_embd": WIDTH, "n_layer": LAYERS, "n_head": HEADS, "n_positions": 16}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    config = transformers.GPT2Config(**sizes, **ends, attn_implementation="sdpa")
    module = transformers.GPT2LMHeadModel(config).double().eval()
    with torch.no_grad():
        for parameter in module.parameters():  # gains and biases that start at 1 and 0 hide errors
            parameter += 0.15 * torch.randn_like(parameter)
    theirs = HookedTransformer(
        HookedTransformerConfig(
            n_layers=LAYERS, d_model=WIDTH, n_ctx=16, d_head=WIDTH // HEADS, n_heads=HEADS, d_mlp=4 * WIDTH,
            d_vocab=WORDS, act_fn="gelu_new", normalization_type="LN", eps=config.layer_norm_epsilon,
            dtype=torch.float64, device="cpu", use_attn_result=True, init_weights=False,
        )
    )  # fmt: skip
    theirs.load_state_dict(convert_gpt2_weights(module, theirs.cfg), strict=False)
    return vitscope.open_model(module), theirs.eval()


@pytest.fixture
def texts() -> torch.Tensor:
    return torch.randint(0, WORDS, (2, TOKENS), generator=torch.Generator().manual_seed(1))


@pytest.fixture(autouse=True)
def _no_grad():
    with torch.no_grad():
        yield


def close(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    torch.testing.assert_close(ours, theirs, atol=CLOSE, rtol=0)


def test_the_stream_is_taken_apart_alike(both, texts):
    model, lens = both
    logits, cache = model.run_with_cache(texts)
    their_logits, their_cache = lens.run_with_cache(texts)
    close(logits, their_logits)
    stack, labels = their_cache.decompose_resid(return_labels=True)
    parts = cache.decompose(heads=False)
    assert labels == [
        "embed",
        "pos_embed",
        "0_attn_out",
        "0_mlp_out",
        "1_attn_out",
        "1_mlp_out",
        "2_attn_out",
        "2_mlp_out",
    ]
    close(parts.values, torch.cat([stack[:2].sum(0)[None], stack[2:]]))  # our embedding has its places
    close(cache.accumulated().values, their_cache.accumulated_resid())
    close(cache.head_results().movedim(3, 1).flatten(0, 1), their_cache.stack_head_results())
    close(cache["pattern", 1], their_cache["pattern", 1])
    close(cache["resid_mid", 2], their_cache["resid_mid", 2])


@pytest.mark.parametrize("gains", ["one", "random"])
def test_logits_are_attributed_alike(both, texts, gains):
    """`logit_attrs` leaves out the gain of an unfolded norm: with gains of 1 it is ours, else ours has their gain."""
    model, lens = both
    own, norm = model.module.transformer.ln_f, lens.ln_final
    kept = own.weight.clone()
    try:
        if gains == "one":
            own.weight.fill_(1)
            norm.w.data.fill_(1)
        right = torch.randint(0, WORDS, texts.shape, generator=torch.Generator().manual_seed(2))
        wrong = (right + 11) % WORDS
        _, cache = model.run_with_cache(texts)
        _, theirs = lens.run_with_cache(texts)
        mlps = theirs.decompose_resid(mode="mlp", incl_embeds=False)
        stack = torch.cat([theirs.stack_head_results(), mlps])
        for other in (None, wrong):
            ours = model.attribute(cache, right, other)
            heads = [f"blocks.{i}.head.{h}" for i in range(LAYERS) for h in range(HEADS)]
            of_mlps = [ours[f"blocks.{i}.mlp"] + ours[f"blocks.{i}.mlp.bias"] for i in range(LAYERS)]
            mine = torch.stack([*(ours[name] for name in heads), *of_mlps])
            if gains == "one":
                close(mine, theirs.logit_attrs(stack, right, other))
            directions = lens.tokens_to_residual_directions(right)
            directions = directions if other is None else directions - lens.tokens_to_residual_directions(other)
            close(mine, (theirs.apply_ln_to_stack(stack) * norm.w * directions).sum(-1))
    finally:
        own.weight.copy_(kept)
        norm.w.data.copy_(kept)


def test_patching_the_stream_at_every_place_restores_alike(both, texts):
    model, lens = both
    clean, corrupted = texts[:1], texts[:1].clone()
    corrupted[0, 2] = (corrupted[0, 2] + 1) % WORDS
    _, cache = model.run_with_cache(clean, "blocks.*.hook_resid_post")
    _, theirs = lens.run_with_cache(clean)

    def margin(logits):
        return logits[0, -1, 5] - logits[0, -1, 9]

    expected = patching.generic_activation_patch(
        lens, corrupted, theirs, margin, patching.layer_pos_patch_setter, "resid_post", ("layer", "pos")
    )
    found = torch.empty_like(expected)
    for block in range(LAYERS):
        for token in range(TOKENS):

            def patch(x, point, token=token):
                x = x.clone()
                x[:, token] = cache[point][:, token]
                return x

            found[block, token] = margin(model.run_with_hooks(corrupted, [(f"blocks.{block}.hook_resid_post", patch)]))
    close(found, expected)
    assert float((found - found[0, 0]).abs().max()) > 1e-3  # patching does something
