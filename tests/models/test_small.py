"""The post-norm ViT of the separation study, against the same network written out in plain torch."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from vitscope.analyses import analyze, list_analyses
from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models import describe, open_model
from vitscope.models.small import small
from vitscope.registry import ANALYSES


def lively(module: nn.Module, seed: int = 0) -> nn.Module:
    """Nothing at zero: class token and positions that are zero would hide errors."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return module


def written_out(
    weights: dict[str, Tensor], images: Tensor, *, patch: int, heads: int, depth: int, eps: float = 1e-6
) -> Tensor:
    w = weights
    x = F.conv2d(images, w["patch_embed.proj.weight"], w["patch_embed.proj.bias"], stride=patch)
    x = x.flatten(2).transpose(1, 2)  # (B, T, C)
    x = torch.cat([w["cls_token"].expand(len(x), -1, -1), x], 1) + w["pos_embed"]
    width = x.shape[-1]
    for i in range(depth):
        p = f"blocks.{i}."
        q, k, v = F.linear(x, w[p + "attn.qkv.weight"], w[p + "attn.qkv.bias"]).chunk(3, -1)
        q, k, v = (t.unflatten(-1, (heads, -1)).transpose(1, 2) for t in (q, k, v))  # (B, H, N, D)
        a = (q @ k.transpose(-1, -2) * (width // heads) ** -0.5).softmax(-1) @ v
        a = F.linear(a.transpose(1, 2).flatten(2), w[p + "attn.proj.weight"], w[p + "attn.proj.bias"])
        x = F.layer_norm(x + a, (width,), w[p + "norm1.weight"], w[p + "norm1.bias"], eps)
        m = F.gelu(F.linear(x, w[p + "mlp.fc1.weight"], w[p + "mlp.fc1.bias"]))
        m = F.linear(m, w[p + "mlp.fc2.weight"], w[p + "mlp.fc2.bias"])
        x = F.layer_norm(x + m, (width,), w[p + "norm2.weight"], w[p + "norm2.bias"], eps)
    return F.linear(x[:, 0], w["head.weight"], w["head.bias"])


@torch.no_grad()
def test_it_computes_what_its_formula_says() -> None:
    module = lively(small(depth=3, embed_dim=24, num_heads=3, mlp_dim=50)).double().eval()
    images = torch.randn(2, 1, 28, 28, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    expected = written_out(module.state_dict(), images, patch=7, heads=3, depth=3)
    assert torch.allclose(module(images), expected, rtol=0, atol=1e-12)


def test_its_defaults_are_those_of_the_study() -> None:
    model = open_model("small", "random")
    layout = model.layout
    assert (layout.blocks, layout.heads, layout.width, layout.patch, layout.tokens) == (7, 8, 64, (7, 7), 17)
    module = model.module
    assert module.blocks[0].mlp.fc1.out_features == 128
    assert not module.cls_token.any()
    assert not module.pos_embed.any()
    dropping = {name for name, part in module.named_modules() if isinstance(part, nn.Dropout) and part.p > 0}
    assert dropping == {f"blocks.{i}.mlp.drop{j}" for i in range(7) for j in (1, 2)}
    assert all(module.get_submodule(name).p == 0.2 for name in dropping)


@torch.no_grad()
@pytest.mark.parametrize(("named", "eps"), [({}, 1e-6), ({"norm_eps": 1e-5}, 1e-5)], ids=["before", "now"])
def test_a_run_folder_opens_with_the_norms_that_it_was_trained_with(tmp_path: Path, named: dict, eps: float) -> None:
    """A folder of the former recipe names no `norm_eps`: its weights learned with 1e-6."""
    kwargs = {"num_classes": 10, "depth": 2, "embed_dim": 16, "num_heads": 2, "mlp_dim": 16, **named}
    module = lively(small(**kwargs)).double()
    parts = module.patch_embed.proj.weight, module.patch_embed.proj.bias, module.cls_token, module.pos_embed
    for part in (*parts, *module.blocks[0].attn.proj.parameters()):
        part.mul_(1e-2)  # small variances, so that what norms add to them is seen
    preprocess = {"input_size": [1, 28, 28], "mean": [0.5], "std": [0.5], "source": "trained with vitscope"}
    (tmp_path / "checkpoints" / "best").mkdir(parents=True)
    (tmp_path / "model.json").write_text(
        json.dumps({"name": "small", "kwargs": kwargs, "attention": None, "preprocess": preprocess})
    )
    save_file(module.state_dict(), tmp_path / "checkpoints" / "best" / "model.safetensors")
    model = open_model(tmp_path)
    images = torch.randn(3, 1, 28, 28, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rates = {e: written_out(module.state_dict(), images, patch=7, heads=2, depth=2, eps=e) for e in (1e-6, 1e-5)}
    assert torch.allclose(model.module.double()(images), rates[eps], rtol=0, atol=1e-6)
    assert not torch.allclose(rates[1e-6], rates[1e-5], rtol=0, atol=1e-5)
    assert model.preprocess.mean == (0.5,)


def test_what_the_study_has_of_its_own_are_options() -> None:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        module = small(norm_eps=1e-5, dropouts=1, attention_init="xavier")
    assert {part.eps for part in module.modules() if isinstance(part, nn.LayerNorm)} == {1e-5}
    dropping = {name for name, part in module.named_modules() if isinstance(part, nn.Dropout) and part.p > 0}
    assert dropping == {f"blocks.{i}.mlp.drop2" for i in range(7)}


@pytest.mark.parametrize("option", [{"dropouts": 3}, {"norm_eps": 0.0}, {"attention_init": "xaver"}], ids=str)
def test_options_of_which_there_is_no_model_say_what_was_expected(option: dict) -> None:
    with pytest.raises(VitscopeError, match=r"expected|has 1"):
        open_model("small", "random", **option)


def test_every_size_can_be_chosen() -> None:
    options = {"embed_dim": 32, "mlp_dim": 33, "num_heads": 2, "patch_size": 4, "depth": 3, "dropout": 0.0}
    model = open_model("small", "random", in_chans=3, img_size=32, num_classes=5, **options)
    assert str(model.layout) == "3 blocks x 2 heads of 16, width 32; 1 class + 0 register + 8x8 image tokens"
    assert model.module.blocks[0].mlp.fc1.out_features == 33
    assert model.preprocess.input_size == (3, 32, 32)
    assert model.num_classes == 5
    assert not any(isinstance(part, nn.Dropout) and part.p > 0 for part in model.module.modules())


def test_the_seed_decides_its_weights() -> None:
    a, b, c = (open_model("small", "random", seed=s).module.state_dict() for s in (0, 0, 1))
    assert all(torch.equal(a[key], b[key]) for key in a)
    assert not torch.equal(a["head.weight"], c["head.weight"])


def test_it_takes_another_attention() -> None:
    model = open_model("small", "random", attention="rpc:layers=0,iterations=2")
    assert "rpc" in str(model.source["attention"])
    assert model(torch.zeros(1, 1, 28, 28)).shape == (1, 10)


def test_it_is_listed_and_has_a_class_space() -> None:
    row = describe("small")
    assert (row.supported, row.class_space, row.pretrained) == (True, True, 0)


def test_bad_requests_say_what_to_do() -> None:
    with pytest.raises(UnsupportedModelError, match="weights='random'"):
        open_model("small")
    with pytest.raises(VitscopeError, match="init_values"):
        open_model("small", "random", init_values=1e-5)
    with pytest.raises(VitscopeError, match="colour"):
        open_model("small", "random", colour=True)


def garments(split: str) -> tuple[np.ndarray, list[int], list[str]]:
    rng = np.random.default_rng(len(split))
    return rng.integers(0, 255, (24, 28, 28)).astype(np.uint8), [i % 10 for i in range(24)], list("abcdefghij")


def test_every_analysis_looks_into_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from vitscope.data import load_data

    monkeypatch.syspath_prepend(Path(__file__).parent)
    model = open_model(lively(small(depth=2)))
    data = load_data("test_small:garments", "test")
    parts = ("probes.moments", "save", "causes.attribution")  # of others; a post-norm stream cannot be split
    options: dict = {n: {} for n in list_analyses() if n not in parts and not ANALYSES.get(n).tasks}
    options["causes.patching"] = {"pairs": ["class"]}
    options["point_means"] = {"points": ["blocks.*.hook_mlp_out"]}
    options["probes"] = {"train": "test_small:garments", "train_split": "train"}
    run = analyze(model, data, options, tmp_path / "run", progress=False, report=False)
    assert run.status == "finished"
    assert len(list(run.tables_dir.glob("*.csv"))) >= len(options)


class StudysLayer(torch.nn.Module):
    """A layer with the names of the study's code, on PyTorch's own attention: x = norm(x + branch)."""

    def __init__(self, width, heads, hidden):
        super().__init__()
        self.attn = torch.nn.Module()
        self.attn.attn = torch.nn.MultiheadAttention(width, heads)
        self.norm1, self.norm2 = torch.nn.LayerNorm(width), torch.nn.LayerNorm(width)
        parts = torch.nn.Linear(width, hidden), torch.nn.GELU(), torch.nn.Linear(hidden, width)
        self.mlp = torch.nn.Sequential(*parts, torch.nn.Dropout(0.2))

    def forward(self, x):  # (B, N, C)
        turned = x.transpose(0, 1)
        x = self.norm1(x + self.attn.attn(turned, turned, turned)[0].transpose(0, 1))
        return self.norm2(x + self.mlp(x))


class StudysModel(torch.nn.Module):
    def __init__(self, width=16, heads=8, hidden=24, depth=3, channels=1, patch=4, size=12, classes=5):
        super().__init__()
        self.patch_embedding = torch.nn.Module()
        self.patch_embedding.proj = torch.nn.Conv2d(channels, width, patch, patch)
        self.cls_token = torch.nn.Parameter(torch.randn(1, 1, width))
        self.pos_embed = torch.nn.Parameter(torch.randn(1, (size // patch) ** 2 + 1, width))
        self.encoder_layers = torch.nn.ModuleList(StudysLayer(width, heads, hidden) for _ in range(depth))
        self.mlp_head = torch.nn.Linear(width, classes)

    def forward(self, x):
        x = self.patch_embedding.proj(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        for layer in self.encoder_layers:
            x = layer(x)
        return self.mlp_head(x[:, 0])


@pytest.fixture
def studys():
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return StudysModel().eval()


@torch.no_grad()
def test_the_studys_own_checkpoint_opens_and_answers_as_its_model(tmp_path, studys):
    torch.save(studys.state_dict(), tmp_path / "study.pth")
    model = open_model("small", tmp_path / "study.pth")
    images = torch.randn(4, 1, 12, 12, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(images), studys(images), rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(model.module.double()(images.double()), studys.double()(images.double()))
    assert "norms add 1e-5" in model.notes[-1]
    assert model.source["options"] == {}  # the sizes come from the file


def test_a_pickled_model_is_refused_with_the_way_to_its_weights(tmp_path, studys):
    """The two lines are typed as they stand, and what they write opens."""
    torch.save(studys, tmp_path / "model_vit.pt")
    with pytest.raises(WeightsError, match="you trust whoever made it") as refusal:
        open_model("small", tmp_path / "model_vit.pt")
    lines = [line.strip() for line in str(refusal.value).splitlines() if line.startswith("  ")]
    exec("\n".join(lines), {})
    exported = str(refusal.value).rpartition("and then open ")[2].rstrip(".")
    assert open_model("small", exported).num_classes == 5
