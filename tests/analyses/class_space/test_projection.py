from __future__ import annotations

import pytest
import torch

from vitscope.analyses.class_space import projection
from vitscope.analyses.class_space.projection import Projector
from vitscope.errors import NumericalError, UnsupportedModelError


def test_logits_equal_the_models_own_way_into_class_space(model, batch):
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.1.hook_attn_out")
        x = cache["blocks.1.hook_attn_out"]
        torch.testing.assert_close(Projector(model).logits(x), model.to_class_space(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("chunk", [70, 10**6])
def test_reading_equals_brute_force_in_double_whatever_the_chunk(model, batch, tools, monkeypatch, chunk):
    monkeypatch.setitem(projection.CHUNK, "cpu", chunk)
    with torch.no_grad():
        _, cache = model.run_with_cache(batch.images, "blocks.2.hook_resid_post")
        x = cache["blocks.2.hook_resid_post"]
        reading = Projector(model).read(x, batch.labels)
        logits = tools["doubled"](model).to_class_space(x.double())  # (B, N, K)
    for b in range(x.shape[0]):
        for n in range(x.shape[1]):
            row = logits[b, n]
            true = row[batch.labels[b]]
            assert reading.rank[b, n] == sum(1 for v in row if v > true)
            assert reading.top[b, n] == row.argmax()
            assert reading.logit[b, n].item() == pytest.approx(true.item(), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("rows", [0, 1, 50, 600])
def test_largest_are_those_of_topk_and_the_first_of_equal_ones_comes_first(rows):
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(2, rows, 30, generator=generator)
    before = values.clone()
    assert torch.equal(projection.largest(values, 5), values.topk(5).indices)
    assert torch.equal(projection.largest(values[..., :3], 5), values[..., :3].topk(3).indices)
    assert torch.equal(values, before)  # looked through in copies
    tied = torch.randint(0, 4, (2, rows, 30), generator=generator).float()
    stable = tied.sort(dim=-1, descending=True, stable=True).indices
    assert torch.equal(projection.largest(tied, 5), stable[..., :5])


def test_distilled_models_send_each_token_through_its_own_head(tools):
    model = tools["build"]("deit_tiny_distilled_patch16_224")
    batch = tools["make_batch"](model)
    with torch.no_grad():
        output, cache = model.run_with_cache(batch.images, "blocks.2.hook_resid_post")
        x = cache["blocks.2.hook_resid_post"]
        own = Projector(model).logits(x)
        torch.testing.assert_close(own[:, :2].mean(1), output, rtol=1e-4, atol=1e-4)  # the model averages the two
        torch.testing.assert_close(own[:, 2:], model.to_class_space(x[:, 2:], "mean"), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(own[:, 1:2], model.to_class_space(x[:, 1:2], "distillation"), rtol=1e-4, atol=1e-4)
        for head in ("mean", "class", "distillation"):
            torch.testing.assert_close(
                Projector(model, head).logits(x), model.to_class_space(x, head), rtol=1e-4, atol=1e-4
            )
        reading = Projector(model).read(x[:, 1:], batch.labels, first_token=1)
        torch.testing.assert_close(reading.top, own[:, 1:].argmax(-1))


def test_models_without_a_way_into_class_space_are_refused_with_the_reason(tools):
    with pytest.raises(UnsupportedModelError, match="no classes"):
        Projector(tools["build"](num_classes=0))
    with pytest.raises(UnsupportedModelError, match="pools its tokens by attention"):
        Projector(tools["build"]("vit_base_patch16_siglip_224"))
    with pytest.raises(UnsupportedModelError, match="one head"):
        Projector(tools["build"](), "distillation")


def test_nan_in_the_residual_is_an_error_that_names_the_place(model, batch):
    x = torch.zeros(2, 3, 32)
    x[1, 2, 0] = float("nan")
    with pytest.raises(NumericalError, match=r"blocks\.1\.hook_resid_post"), torch.no_grad():
        Projector(model).read(x, torch.tensor([0, 1]), where="blocks.1.hook_resid_post")


def test_an_edit_of_the_final_norm_changes_what_the_model_says_and_no_reading(model, batch):
    points = "blocks.2.hook_resid_post"
    with torch.no_grad():
        plain, cache = model.run_with_cache(batch.images, points)
        before = Projector(model).read(cache[points], batch.labels)
        with model.edits({"ln_final.hook_normalized": lambda x, point: 2 * x}):
            edited, cache = model.run_with_cache(batch.images, points)
            after = Projector(model).read(cache[points], batch.labels)
    assert not torch.allclose(plain, edited)
    assert torch.equal(before.logit, after.logit)
