"""Attribution and patching against TransformerLens, which computes GPT-2 by code of its own: `make test-lens`."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest
import torch
import transformers

import vitscope
from vitscope.analyses import create_analysis, measure
from vitscope.analyses.base import Setting
from vitscope.analyses.causes.pairs import Pairs, Partners, register_pairs
from vitscope.data.batch import Batch
from vitscope.tasks.language import Language

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
    """Float64 by default as well: their tables of patches are made in the default dtype, float32 else."""
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            yield
    finally:
        torch.set_default_dtype(torch.float32)


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


PLACES = [f"token {i}" for i in range(TOKENS)]


@register_pairs("another word")
class AnotherWord(Pairs):
    """The first three words are other ones; every place is a group of its own."""

    groups: ClassVar = PLACES

    def partners(self, batch):
        changed = batch.inputs.clone()
        changed[:, :3] = (changed[:, :3] + 7) % WORDS
        alone = {name: (torch.arange(TOKENS) == i).expand(len(batch), -1) for i, name in enumerate(PLACES)}
        return Partners(changed, torch.ones(len(batch), dtype=torch.bool), alone)


@pytest.fixture
def answered(both, texts) -> Batch:
    """One text, of which each next token is what the model foresees."""
    model, _ = both
    targets = model(texts[:1]).argmax(-1)
    return Batch(texts[:1], targets, torch.arange(1), ["a text"], valid=torch.ones(1, TOKENS, dtype=torch.bool))


def studied(model: vitscope.Model, batch: Batch, name: str, **options: Any) -> Any:
    study = create_analysis(name, **options)
    study.setting = Setting(task=Language())
    measure(model, [batch], [study])
    return study


@pytest.mark.parametrize("direction", ["denoising", "noising"])
def test_the_study_of_patching_finds_the_shares_and_estimates_of_theirs(both, answered, direction):
    """`causes.patching` as it is run, table against table: the stream at each place, heads, attentions, MLPs."""
    model, lens = both
    study = studied(model, answered, "causes.patching", pairs=["another word"], directions=[direction], null=False)
    table = study.tables()["causes_patching"].set_index(["component", "tokens"])
    clean, corrupted = answered.inputs, AnotherWord.partners(study.makers[0], answered).inputs
    true, wrong = lens(clean)[0].argmax(-1), lens(corrupted)[0].argmax(-1)
    contested = (true != wrong).nonzero().flatten()
    assert len(contested) > 1

    def difference(logits):
        return (logits[0, contested, true[contested]] - logits[0, contested, wrong[contested]]).mean()

    ends = [difference(lens(x)) for x in (clean, corrupted)]
    base, other = (corrupted, clean) if direction == "denoising" else (clean, corrupted)
    sign = 1 if direction == "denoising" else -1
    whole, start = ends[0] - ends[1], ends[1] if direction == "denoising" else ends[0]
    _, theirs = lens.run_with_cache(other)
    setters = {
        "resid_post": (patching.layer_pos_patch_setter, ("layer", "pos")),
        "attn_out": (_at_all_places, ("layer",)),
        "mlp_out": (_at_all_places, ("layer",)),
        "z": (patching.layer_head_vector_patch_setter, ("layer", "head")),
    }
    values = _estimates(lens, base, theirs, difference)
    for point, (setter, axes) in setters.items():
        found = patching.generic_activation_patch(lens, base, theirs, difference, setter, point, axes)
        kind = {"resid_post": "resid", "attn_out": "attn", "mlp_out": "mlp", "z": "head"}[point]
        for block in range(LAYERS):
            rows = {
                "resid": [(f"resid.{block}", p) for p in PLACES],
                "head": [(f"head.{block}.{h}", "all") for h in range(HEADS)],
            }
            ours = table.loc[rows.get(kind, [(f"{kind}.{block}", "all")])]
            close(torch.tensor(ours["share"].to_numpy()), sign * (found[block].reshape(-1) - start) / whole)
            guess = values[point][block]  # (N,), or (N, H)
            guess = guess if kind == "resid" else guess.sum(0).reshape(-1)
            close(torch.tensor(ours["estimate"].to_numpy()), sign * guess / whole)
            assert float(ours["share"].abs().max()) > 1e-3


def _at_all_places(corrupted, index, clean):
    return clean


def _estimates(lens, base, other, metric):
    """(new - base) times the gradient by hooks of their own, per point and block: (N,), or of z (N, H)."""
    values, gradients = {}, {}

    def keep(value, hook):
        values[hook.name] = value.detach()

    def keep_gradient(value, hook):
        gradients[hook.name] = value.detach().clone()

    names = ("hook_resid_post", "hook_attn_out", "hook_mlp_out", "attn.hook_z")
    wanted = [f"blocks.{block}.{name}" for block in range(LAYERS) for name in names]
    with torch.enable_grad(), lens.hooks([(n, keep) for n in wanted], [(n, keep_gradient) for n in wanted]):
        metric(lens(base)).backward()
    lens.zero_grad()
    found = {name: ((other[name] - values[name]) * gradients[name]).sum(-1)[0] for name in wanted}
    return {name.split("hook_")[1]: [found[f"blocks.{block}.{name}"] for block in range(LAYERS)] for name in names}


def test_the_study_of_attribution_has_their_shares(both, texts, answered):
    model, lens = both
    table = studied(model, answered, "causes.attribution").tables()["causes_attribution"]
    means = table[table["images"] == "all"].set_index("part")["mean"]
    logits, theirs = lens.run_with_cache(answered.inputs)
    stack = theirs.apply_ln_to_stack(theirs.stack_head_results()) * lens.ln_final.w
    expected = (stack * lens.tokens_to_residual_directions(answered.targets)).sum(-1).mean((1, 2))  # (heads,)
    names = [f"blocks.{block}.head.{head}" for block in range(LAYERS) for head in range(HEADS)]
    close(torch.tensor(means[names].to_numpy()), expected)
    true = logits.gather(-1, answered.targets[..., None]).mean()
    close(torch.tensor(means.sum(), dtype=torch.float64), true)
