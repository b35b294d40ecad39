"""Analyses of a model whose attention is no softmax: right on the one that shows itself, refused on the one that does
not, and never figures of something that was not seen."""

from __future__ import annotations

import math
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F

from vitscope.analyses import analyze, create_analysis, measure
from vitscope.analyses.attention_facts import AttentionFacts, attention_facts, check_points, row_sums, shares_of
from vitscope.analyses.class_space.attention_edits import attention_edit, no_cls, self_only
from vitscope.analyses.class_space.relevance import METHODS, relevance
from vitscope.analyses.class_space.removal import droppable, maskable, stream_kept
from vitscope.attention import convert, explicit_attention
from vitscope.data.batch import Batch
from vitscope.data.dataset import ImageData
from vitscope.errors import UnsupportedModelError
from vitscope.models import open_model
from vitscope.robustness.attack_lens import attention_moved

sys.path.insert(0, str(Path(__file__).parents[1]))
from own_attentions import HIDDEN, SHOWN, PlainSigmoid, give_attention, sigmoid_weights

OPTIONS = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "num_heads": 2, "num_classes": 10}
LENSES = [
    "attention", "kpca.spectrum", "kpca.reconstruction", "kpca.norms", "kpca.gamma", "kpca.values",
    "class_space.memories", "perturbation", "relevance",
]  # fmt: skip


def build(kind: str | None = None, name: str = "vit_tiny_patch16_224", **options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = timm.create_model(name, **{**OPTIONS, "depth": 2, **options}).eval()
    with torch.no_grad():
        for block in module.blocks:
            block.attn.qkv.weight.mul_(8)
    return open_model(module if kind is None else give_attention(module, kind))


def make_batch(n=4, seed=1, masks=True):
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(n, 1, 28, 28, generator=generator)
    mask = torch.randint(0, 2, (n, 28, 28), generator=generator, dtype=torch.uint8) if masks else None
    labels = torch.randint(0, 10, (n,), generator=generator)
    return Batch(images, labels, torch.arange(n), [f"{i}.png" for i in range(n)], masks=mask)


def unfused(self, x, **_):
    q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
    return self.proj(((q @ k.mT * self.scale).softmax(-1) @ v).transpose(1, 2).flatten(2))


# --- found out before the first image -----------------------------------------------------------------------------


@pytest.mark.parametrize("kind", [*HIDDEN, "patched"])
def test_every_lens_on_attention_refuses_one_that_does_not_show_itself_before_the_first_image(kind):
    model = build(None if kind == "patched" else kind)
    if kind == "patched":
        attention = model.module.blocks[1].attn
        attention.forward = types.MethodType(unfused, attention)
    for name in LENSES:
        with pytest.raises(UnsupportedModelError, match="made no call of scaled_dot_product_attention"):
            create_analysis(name).start(model)
    for name in ("class_space.identifiability", "class_space.lens", "accuracy"):
        measure(model, [make_batch()], [create_analysis(name)])
    with pytest.raises(UnsupportedModelError, match="explicit_attention"):
        attention_edit(model, "self_only")


@pytest.fixture
def data(tmp_path):
    from PIL import Image

    for label in range(2):
        for i in range(3):
            file = tmp_path / "pictures" / str(label) / f"{i}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((28, 28), 40 * i + 100 * label, dtype=np.uint8)).save(file)
    from vitscope.data import load_data

    return load_data(tmp_path / "pictures")


def test_default_analyses_are_left_out_with_the_reason_and_named_ones_are_refused(data: ImageData, tmp_path):
    model = build("hidden sigmoid", num_classes=2)
    how = {"progress": False, "report": False}
    run = analyze(model, data, out=tmp_path / "default", **how)
    assert run.status == "finished"
    assert run.table("attention") is None
    assert any("'attention' was left out" in w and "no call of scaled_dot" in w for w in run.warnings)
    assert {"accuracy.top1", "separation.last_block"} <= run.summary.keys()
    with pytest.raises(UnsupportedModelError, match="HiddenSigmoid"):
        analyze(model, data, ["accuracy", "attention"], tmp_path / "named", **how)
    with pytest.raises(UnsupportedModelError, match="HiddenSigmoid"):
        analyze(model, data, ["accuracy"], tmp_path / "saved", save=["blocks.0.attn.hook_z"], **how)
    assert not (tmp_path / "named").exists()


def test_timms_and_our_own_attentions_are_known_without_a_forward_pass(monkeypatch):
    for kind in (None, "softmax", "symmetric", "rpc", "scaled"):
        model = build()
        if kind:
            convert(model, kind)
        monkeypatch.setattr(model.module, "forward", lambda *_: pytest.fail("a forward pass"), raising=False)
        assert attention_facts(model) == AttentionFacts()


def test_an_attention_is_tried_out_once_and_again_after_a_change():
    model = build("plain shown sigmoid")
    passes = []
    model.module.patch_embed.register_forward_hook(lambda *_: passes.append(1))
    assert attention_facts(model) == attention_facts(model) == AttentionFacts(None, softmax=False, shares=False)
    assert len(passes) == 1
    model.module.blocks[0].attn = PlainSigmoid(model.module.blocks[0].attn, shown=False)
    assert "PlainSigmoid" in attention_facts(model).missing
    assert len(passes) == 2


def test_trying_out_leaves_model_edits_and_random_state_as_they_were():
    model = build("shown sigmoid").to("cpu")
    model.module.train()
    model.module.blocks[1].eval()
    modes, state = [m.training for m in model.module.modules()], torch.get_rng_state()
    with model.edits({"blocks.*.attn.hook_pattern": lambda *_: pytest.fail("an edit was called")}):
        assert attention_facts(model).missing is None
    assert [m.training for m in model.module.modules()] == modes
    assert torch.equal(torch.get_rng_state(), state)


def test_a_softmax_of_ones_own_is_recognised_and_another_scale_is_not():
    for scale, expected in ((None, True), (1.0, False)):
        model = build()

        def forward(self, x, scale=scale, **_):
            q, k, v = self.qkv(x).unflatten(-1, (3, self.num_heads, -1)).permute(2, 0, 3, 1, 4)
            z = F.scaled_dot_product_attention(q, k, v, scale=scale)
            return self.proj(z.transpose(1, 2).flatten(2))

        for block in model.module.blocks:
            block.attn.forward = types.MethodType(forward, block.attn)
        facts = attention_facts(model)
        assert (facts.missing, facts.softmax, facts.shares) == (None, expected, True)


# --- right on an attention that shows itself ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", SHOWN)
def test_all_lenses_work_on_a_sigmoid_attention(kind):
    model = build(kind)
    analyses = [create_analysis(name) for name in LENSES]
    measure(model, [make_batch()], analyses)
    for analysis in analyses:
        for name, table in analysis.tables().items():
            numbers = table.drop(columns=[c for c in table if c in analysis.optional]).select_dtypes("number")
            assert len(table), name
            assert np.isfinite(numbers.to_numpy()).all(), name


def patterns_by_hand(model, images):
    """Sigmoid patterns (L, B, H, N, N) in float64, from the weights alone."""
    module, found = model.module.double(), []
    with torch.no_grad():
        x = module.norm_pre(module._pos_embed(module.patch_embed(images.double())))
        for block in module.blocks:
            y = block.norm1(x)
            q, k, v = (p.unflatten(-1, (2, 16)).transpose(1, 2) for p in block.attn.qkv(y).chunk(3, -1))
            pattern = 1 / (1 + q.shape[2] * torch.exp(-torch.einsum("bhid,bhjd->bhij", q, k) / 4))
            found.append(pattern)
            x = x + block.attn.proj((pattern @ v).transpose(1, 2).flatten(2))
            x = x + block.mlp(block.norm2(x))
    module.float()
    return torch.stack(found)


def test_attention_figures_of_a_sigmoid_are_those_of_its_shares():
    model, batch = build("shown sigmoid"), make_batch()
    analysis = create_analysis("attention")
    measure(model, [batch], [analysis])
    table = analysis.tables()["attention"].set_index(["block", "head", "query", "metric"])["mean"]
    pattern = patterns_by_hand(model, batch.images)
    assert (pattern.sum(-1) - 1).abs().max() > 0.3
    share = pattern / pattern.sum(-1, keepdim=True)
    entropy = -(share * share.log()).sum(-1).mean(1)  # (L, H, N), mean over images
    for block in range(2):
        for head in range(2):
            rows, s = entropy[block, head], share[block, :, head]
            expected = {
                ("image", "entropy"): rows[1:].mean(),
                ("image", "entropy_normalised"): rows[1:].mean() / math.log(17),
                ("class", "entropy"): rows[0],
                ("image", "mass_class"): s[:, 1:, 0].mean(),
                ("image", "mass_self"): s.diagonal(dim1=1, dim2=2)[:, 1:].mean(),
            }
            for key, value in expected.items():
                assert table[(block, head, *key)] == pytest.approx(float(value), rel=1e-4)
    assert table.xs("entropy_normalised", level="metric").between(0, 1).all()
    assert "do not sum to 1" in analysis.remarks[0]
    assert "do not sum to 1" in analysis.summary()["entropy_normalised"].note


def test_edits_of_the_pattern_leave_a_row_the_sum_that_it_had():
    layout = build().layout
    generator = torch.Generator().manual_seed(0)
    for pattern in (torch.rand(2, 2, 17, 17, generator=generator), torch.randn(2, 2, 17, 17).softmax(-1)):
        sums = pattern.sum(-1)
        alone, blind = self_only(pattern, layout), no_cls(pattern, layout)
        bare = no_cls(pattern, layout, renormalise=False)
        for edited in (alone, blind):
            torch.testing.assert_close(edited.sum(-1), sums)
        assert torch.equal(alone[..., 1:, 1:], torch.diag_embed(alone.diagonal(dim1=-2, dim2=-1)[..., 1:]))
        assert alone[..., 1:, 0].abs().max() == blind[..., 1:, 0].abs().max() == 0
        torch.testing.assert_close(
            blind[..., 1:, 1:] / bare[..., 1:, 1:], (sums / bare.sum(-1))[..., 1:, None].expand(2, 2, 16, 16)
        )
        assert torch.equal(bare[..., 1:], pattern[..., 1:])
        assert all(torch.equal(e[..., 0, :], pattern[..., 0, :]) for e in (alone, blind, bare))


def test_perturbations_of_a_sigmoid_attention_really_happen():
    """self_only by hand: a token adds what its own value is worth, times the sum of its row."""
    model, batch = build("shown sigmoid"), make_batch()
    with torch.no_grad(), model.edits(attention_edit(model, "self_only")):
        logits, cache = model.run_with_cache(batch.images, "blocks.*.attn.hook_[vz]")
    _, before = model.run_with_cache(batch.images, "blocks.0.attn.hook_pattern")
    sums = before["blocks.0.attn.hook_pattern"].sum(-1, keepdim=True)
    z, v = cache["blocks.0.attn.hook_z"], cache["blocks.0.attn.hook_v"]
    torch.testing.assert_close(z[:, :, 1:], (sums * v)[:, :, 1:])
    assert not torch.allclose(logits, model(batch.images), atol=1e-4)
    analysis = create_analysis("perturbation", kinds=["self_only", "no_cls"])
    measure(model, [batch], [analysis])
    changes = analysis.tables()["perturbation"]["identifiability_change"]
    assert (changes != 0).any()


@pytest.mark.parametrize("kind", ["plain shown sigmoid", "rpc", "scaled"])
def test_tokens_are_really_dropped_where_masking_would_be_something_else(kind):
    """Sigmoid weights depend on the number of tokens, RPC's threshold on all keys, also in a single iteration."""
    model = build(kind if "sigmoid" in kind else None)
    if kind == "rpc":
        convert(model, "rpc", iterations=1, lambd=0.5)
    if kind == "scaled":
        convert(model, "scaled", alpha=0.7)
    assert not maskable(model)
    assert droppable(model)
    images = make_batch().images
    keep = torch.rand(4, 17, generator=torch.Generator().manual_seed(3)) < 0.5
    keep[:, :2] = True
    m = model.module
    with torch.no_grad():
        found = stream_kept(model, images, keep)
        for image, row, logits in zip(images, keep, found):
            x = m._pos_embed(m.patch_embed(image[None]))[:, row]
            torch.testing.assert_close(m.head(m.norm(m.blocks(x))[:, 0])[0], logits, rtol=1e-4, atol=1e-5)


def test_removals_are_refused_where_tokens_can_neither_be_masked_nor_dropped():
    module = timm.create_model("vit_tiny_patch16_224", **OPTIONS, depth=2, global_pool="map").eval()
    model = open_model(give_attention(module, "shown sigmoid"))
    with pytest.raises(UnsupportedModelError, match="neither be masked"):
        create_analysis("relevance").start_sums(model)
    model = convert(build(), "scaled", form="matrix")  # S belongs to places and reaches around any mask
    with pytest.raises(UnsupportedModelError, match="neither be masked"):
        create_analysis("perturbation", kinds=["without_context"]).start(model)
    analysis = create_analysis("perturbation")
    measure(model, [make_batch()], [analysis])
    assert set(analysis.tables()["perturbation"]["perturbation"]) == {"self_only", "no_cls", "no_cls_bare"}
    assert "no tokens are removed" in analysis.remarks[0]


def test_relevance_of_a_sigmoid_attention_has_finite_maps_and_rollout_looks_at_shares():
    model, batch = build("shown sigmoid"), make_batch(2)
    for method in METHODS:
        assert relevance(model, batch.images, batch.labels, method).isfinite().all()
    share = patterns_by_hand(model, batch.images)
    share = (share / share.sum(-1, keepdim=True)).mean(2)  # (L, B, N, N)
    mixed = (share + torch.eye(17)) / 2
    expected = (mixed[1] @ mixed[0])[:, 0, 1:]
    torch.testing.assert_close(relevance(model, batch.images, batch.labels, "rollout"), expected.float())


def test_kernel_pca_says_that_the_attention_is_another():
    for kind, remarked in ((None, False), ("shown sigmoid", True)):
        analysis = create_analysis("kpca.reconstruction")
        analysis.start(build(kind))
        assert any("not softmax" in remark for remark in analysis.remarks) == remarked


def test_attention_that_moved_is_a_share_of_a_sigmoid_too(data, tmp_path):
    import vitscope

    model = build("shown sigmoid", num_classes=2)
    how = {"progress": False, "report": False}
    run = vitscope.attack(model, data, ["noise"], "8/255", tmp_path / "run", lens=["attention"], **how)
    moved = run.table("attack_lens")["attention_moved"]
    assert moved.between(0, 1).all()
    assert any("attention_moved" in w and "do not sum to 1" in w for w in run.warnings)
    with pytest.raises(UnsupportedModelError, match="made no call"):
        vitscope.attack(
            build("hidden sigmoid", num_classes=2), data, ["noise"], "8/255", tmp_path / "no", lens=True, **how
        )


def test_shares_of_a_softmax_are_its_pattern_and_impossible_ones_are_refused():
    pattern = torch.randn(2, 3, 40, 40, generator=torch.Generator().manual_seed(0)).mul(9).softmax(-1)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        assert torch.equal(shares_of(pattern.to(dtype)), pattern.to(dtype))
        assert (row_sums(pattern.to(dtype)) == 1).all()
    assert torch.equal(attention_moved(shares_of(3 * pattern), pattern) < 1e-6, torch.tensor([True, True]))
    for wrong in (pattern - 0.1, torch.relu(pattern - 2)):
        with pytest.raises(UnsupportedModelError, match="negative weights or a row of zeros"):
            shares_of(wrong)


def test_negative_weights_are_refused_by_whatever_looks_at_shares():
    model = build("plain shown sigmoid")
    for block in model.module.blocks:
        attention = block.attn

        def forward(self, x, **_):
            q, k, v = self.qkv(x).unflatten(-1, (3, 2, -1)).permute(2, 0, 3, 1, 4)
            return self.proj(explicit_attention(q, k, v, torch.tanh).transpose(1, 2).flatten(2))

        attention.forward = types.MethodType(forward, attention)
    assert attention_facts(model).negative
    with pytest.raises(UnsupportedModelError, match="negative attention weights"):
        create_analysis("attention").start(model)
    with pytest.raises(UnsupportedModelError, match="no_cls_bare"):
        attention_edit(model, "no_cls")
    attention_edit(model, "no_cls", renormalise=False)
    check_points(model, ["blocks.*.attn.hook_pattern"])


def test_what_an_attention_must_say_of_itself_is_asked_for_by_name():
    module = timm.create_model("vit_tiny_patch16_224", **OPTIONS, depth=2)
    give_attention(module, "plain shown sigmoid")
    model = open_model(module)
    module.blocks[0].attn.proj = torch.nn.Sequential(module.blocks[0].attn.proj)
    with pytest.raises(UnsupportedModelError, match="expected as `proj`"):
        create_analysis("class_space.memories").start(model)
    del module.blocks[0].attn.num_heads
    with pytest.raises(UnsupportedModelError, match="`num_heads` and `head_dim`"):
        open_model(module)
    assert sigmoid_weights(torch.tensor([-math.inf, 0.0])).tolist() == pytest.approx([0, 1 / 3])
