"""Relevance methods against their definitions written out with full matrices and autograd in float64."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitscope.analyses.class_space.relevance import METHODS, Place, random_relevance, relevance
from vitscope.errors import VitscopeError
from vitscope.models.readout import readout_logits, readout_weights

KINDS = {
    "class token": {},
    "registers": {"reg_tokens": 2},
    "pooled": {"class_token": False, "global_pool": "avg"},
    "pooled, norm before": {"global_pool": "avg", "fc_norm": False},
}


def explicit_forward(model, images):
    """ViT written out in double: logits, and per block the pattern (a leaf of the graph) and the attention output."""
    m = model.module
    x = m.norm_pre(m._pos_embed(m.patch_embed(images)))
    patterns, outputs = [], []
    for block in m.blocks:
        q, k, v = block.attn.qkv(block.norm1(x)).view(*x.shape[:2], 3, 4, 8).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) / 8**0.5).softmax(-1)
        a.requires_grad_() if not a.requires_grad else a.retain_grad()
        out = block.attn.proj((a @ v).transpose(1, 2).flatten(2))
        patterns.append(a)
        outputs.append(out)
        x = x + out
        x = x + block.mlp(block.norm2(x))
    return m.forward_head(m.norm(x)), patterns, outputs


@pytest.fixture(params=list(KINDS))
def case(request, tools):
    model = tools["doubled"](tools["build"](**KINDS[request.param]))
    batch = tools["make_batch"](model)
    return model, batch.images.double(), batch.labels


def test_chefer_equals_the_full_matrix_rule(case):
    model, images, labels = case
    logits, patterns, _ = explicit_forward(model, images)
    gradients = torch.autograd.grad(logits.gather(1, labels[:, None]).sum(), patterns)
    n = model.layout.tokens
    matrix = torch.eye(n, dtype=torch.float64).repeat(len(images), 1, 1)
    for a, g in zip(patterns, gradients):
        matrix = matrix + (g * a).clamp(min=0).mean(1).detach() @ matrix
    expected = torch.einsum("n,bnm->bm", readout_weights(model).double(), matrix)[:, model.layout.prefix_tokens :]
    torch.testing.assert_close(relevance(model, images, labels, "chefer").double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("double_softmax", [False, True])
def test_class_gradients_equal_autograd_through_the_pattern(case, double_softmax):
    model, images, labels = case
    _, patterns, outputs = explicit_forward(model, images)
    expected = torch.zeros(len(images), model.layout.tokens, dtype=torch.float64)
    rows = readout_weights(model) > 0
    for a, out in zip(patterns, outputs):
        logits = readout_logits(model, out)
        logits = logits.softmax(-1) if double_softmax else logits
        loss = F.cross_entropy(logits, labels, reduction="sum")
        (gradient,) = torch.autograd.grad(loss, a, retain_graph=True)
        expected -= gradient[:, :, rows].sum((1, 2)).detach()
    method = "class_gradients_code" if double_softmax else "class_gradients"
    got = relevance(model, images, labels, method).double()
    torch.testing.assert_close(got, expected[:, model.layout.prefix_tokens :], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["probability", "logit"])
def test_gradients_of_probability_and_logit_equal_autograd_through_the_pattern_of_one_head(case, name):
    model, images, labels = case
    _, patterns, outputs = explicit_forward(model, images)
    logits = readout_logits(model, outputs[1])
    value = (logits if name == "logit" else logits.softmax(-1)).gather(1, labels[:, None]).sum()
    (gradient,) = torch.autograd.grad(value, patterns[1])
    expected = gradient[:, 2, readout_weights(model) > 0].sum(1)[:, model.layout.prefix_tokens :]
    got = relevance(model, images, labels, f"class_gradients_{name}", Place(1, 2)).double()
    torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-6)


def test_maps_of_all_blocks_and_heads_add_up_to_the_whole(model, batch):
    parts = [
        relevance(model, batch.images, batch.labels, "class_gradients", Place(block, head))
        for block in range(3)
        for head in range(4)
    ]
    whole = relevance(model, batch.images, batch.labels, "class_gradients")
    torch.testing.assert_close(sum(parts), whole, rtol=1e-4, atol=1e-6)
    heads = [relevance(model, batch.images, batch.labels, "attention", Place(2, head)) for head in range(4)]
    torch.testing.assert_close(sum(heads) / 4, relevance(model, batch.images, batch.labels, "attention"))


def test_a_place_that_a_model_or_a_method_does_not_have_is_refused(model, batch):
    with pytest.raises(VitscopeError, match="heads 0 to 3; there is no head 4"):
        relevance(model, batch.images, batch.labels, "attention", Place(0, 4))
    with pytest.raises(VitscopeError, match="chefer is made of all blocks"):
        relevance(model, batch.images, batch.labels, "chefer", Place(block=0))


def test_rollout_and_attention_equal_the_full_matrix_products(case):
    model, images, labels = case
    _, patterns, _ = explicit_forward(model, images)
    n, u = model.layout.tokens, readout_weights(model).double()
    matrix = torch.eye(n, dtype=torch.float64).expand(len(images), n, n)
    for a in patterns:
        matrix = (0.5 * a.mean(1) + 0.5 * torch.eye(n)).detach() @ matrix
    p = model.layout.prefix_tokens
    expected = torch.einsum("n,bnm->bm", u, matrix)[:, p:]
    torch.testing.assert_close(relevance(model, images, labels, "rollout").double(), expected, rtol=1e-5, atol=1e-7)
    last = torch.einsum("n,bnm->bm", u, patterns[-1].mean(1).detach())[:, p:]
    torch.testing.assert_close(relevance(model, images, labels, "attention").double(), last, rtol=1e-5, atol=1e-7)


def test_gradient_x_input_sums_to_the_directional_derivative(case):
    """Summed over patches it is d logit / d t of the image scaled by (1 + t), here by finite differences."""
    model, images, labels = case
    got = relevance(model, images, labels, "gradient_x_input").double()
    with torch.no_grad():
        step = 1e-5
        chosen = [model(images * (1 + s)).gather(1, labels[:, None])[:, 0] for s in (step, -step)]
    torch.testing.assert_close(got.sum(1), (chosen[0] - chosen[1]) / (2 * step), rtol=1e-4, atol=1e-5)
    # and patch by patch
    with torch.no_grad():
        patch = torch.zeros_like(images)
        patch[:, :, 7:14, 21:28] = images[:, :, 7:14, 21:28]
        chosen = [model(images + s * patch).gather(1, labels[:, None])[:, 0] for s in (step, -step)]
    torch.testing.assert_close(got[:, 4 + 3], (chosen[0] - chosen[1]) / (2 * step), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", list(METHODS))
def test_a_batch_is_the_same_as_image_by_image_and_leaves_no_trace(model, tools, method):
    batch = tools["make_batch"](model)
    parameters = [(p.clone(), p.requires_grad) for p in model.module.parameters()]
    with torch.no_grad():
        before = model(batch.images)
        together = relevance(model, batch.images, batch.labels, method)
        alone = [relevance(model, batch.images[i : i + 1], batch.labels[i : i + 1], method) for i in range(6)]
        torch.testing.assert_close(together, torch.cat(alone), rtol=1e-3, atol=1e-5)
        torch.testing.assert_close(model(batch.images), before, rtol=0, atol=0)
    assert together.shape == (6, 16)
    assert not together.requires_grad
    for p, (value, flag) in zip(model.module.parameters(), parameters):
        assert torch.equal(p, value)
        assert p.requires_grad == flag
        assert p.grad is None


def test_distilled_and_rope_models_have_every_method(tools):
    for name in ("deit_tiny_distilled_patch16_224", "eva02_tiny_patch14_224", "beit_base_patch16_224"):
        model = tools["build"](name)
        batch = tools["make_batch"](model, 2)
        for method in METHODS:
            found = relevance(model, batch.images, batch.labels, method)
            assert found.shape == (2, 16)
            assert found.isfinite().all()
            assert found.std() > 0


def test_readout_is_the_models_own_head_at_the_last_block(case):
    model, images, _ = case
    with torch.no_grad():
        logits, cache = model.run_with_cache(images, "blocks.2.hook_resid_post")
        torch.testing.assert_close(readout_logits(model, cache["blocks.2.hook_resid_post"]), logits)


def test_random_relevance_belongs_to_the_image():
    torch.testing.assert_close(random_relevance([7, 3], 16)[1], random_relevance([3], 16)[0])
    assert not torch.equal(random_relevance([3], 16, draw=1), random_relevance([3], 16))


def test_unknown_method_suggests_the_nearest(model, batch):
    with pytest.raises(VitscopeError, match="Did you mean chefer"):
        relevance(model, batch.images, batch.labels, "cheffer")
