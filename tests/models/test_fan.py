"""FAN: the published names and shapes, and its logits against a plain implementation that knows nothing but these."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent.parent / "attention"))
from attention_oracles import explicit_rpc, explicit_softmax

import vitscope
from vitscope import open_model
from vitscope.attention import convert, describe_attention
from vitscope.errors import UnsupportedModelError, VitscopeError, WeightsError
from vitscope.models.creation import sketch
from vitscope.models.examine import describe

NAME = "fan_tiny_12_p16_224"
C, HEADS, HIDDEN, CLASSES, DEPTH = 32, 4, 64, 5, 2
SIZES = {"img_size": [32, 48], "embed_dim": C, "num_heads": HEADS, "mlp_ratio": HIDDEN / C, "depth": DEPTH}
GRID = (2, 3)


def norm_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def batch_norm_shapes(name: str, width: int) -> dict[str, tuple[int, ...]]:
    more = {f"{name}.running_mean": (width,), f"{name}.running_var": (width,), f"{name}.num_batches_tracked": ()}
    return {**norm_shapes(name, width), **more}


def linear_shapes(name: str, inputs: int, outputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def published_shapes(queries: bool = True) -> dict[str, tuple[int, ...]]:
    """Names and shapes as a published checkpoint has them."""
    shapes: dict[str, tuple[int, ...]] = {"cls_token": (1, 1, C)}
    for i, (before, after) in enumerate([(3, C // 8), (C // 8, C // 4), (C // 4, C // 2), (C // 2, C)]):
        shapes[f"patch_embed.proj.{2 * i}.0.weight"] = (after, before, 3, 3)
        shapes |= batch_norm_shapes(f"patch_embed.proj.{2 * i}.1", after)
    shapes |= {"pos_embed.token_projection.weight": (C, 64, 1, 1), "pos_embed.token_projection.bias": (C,)}
    for i in range(DEPTH):
        b = f"blocks.{i}."
        shapes |= {**norm_shapes(b + "norm1", C), **norm_shapes(b + "norm2", C), **norm_shapes(b + "mlp.norm_v", C)}
        shapes |= {b + "gamma1": (C,), b + "gamma2": (C,), b + "mlp.temperature": (HEADS, 1, 1)}
        shapes |= {**linear_shapes(b + "attn.q", C, C)} if queries else {}
        shapes |= {**linear_shapes(b + "attn.kv", C, 2 * C), **linear_shapes(b + "attn.proj", C, C)}
        shapes |= {**linear_shapes(b + "mlp.q", C, C), b + "mlp.mlp_v.gamma": (HIDDEN,)}
        shapes |= {**linear_shapes(b + "mlp.mlp_v.fc1", C, HIDDEN), **linear_shapes(b + "mlp.mlp_v.fc2", HIDDEN, C)}
        shapes |= batch_norm_shapes(b + "mlp.mlp_v.dwconv.bn", HIDDEN)
        for convolution in ("conv1", "conv2"):
            shapes[b + f"mlp.mlp_v.dwconv.{convolution}.weight"] = (HIDDEN, 1, 3, 3)
            shapes[b + f"mlp.mlp_v.dwconv.{convolution}.bias"] = (HIDDEN,)
    for i in range(2):
        b = f"cls_attn_blocks.{i}."
        shapes |= {**norm_shapes(b + "norm1", C), **norm_shapes(b + "norm2", C), b + "gamma1": (C,), b + "gamma2": (C,)}
        for part in "qkv":
            shapes |= linear_shapes(b + f"attn.{part}", C, C)
        shapes |= linear_shapes(b + "attn.proj", C, C)
        shapes |= {**linear_shapes(b + "mlp.fc1", C, HIDDEN), **linear_shapes(b + "mlp.fc2", HIDDEN, C)}
    return shapes | norm_shapes("norm", C) | linear_shapes("head", C, CLASSES)


def published_state(queries: bool = True) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    state = {}
    for name, shape in published_shapes(queries).items():
        fan_in = math.prod(shape[1:]) or 1
        state[name] = torch.randn(shape, generator=generator) * fan_in**-0.5
        if name.endswith("running_var"):
            state[name] = state[name].abs() + 0.5
        elif name.endswith("num_batches_tracked"):
            state[name] = torch.tensor(7)
    return state


class Plain:
    """FAN written out on a state dict, token by token where that is the clearer way."""

    def __init__(self, state, attend=explicit_softmax, first=None):
        self.s, self.attend, self.first = state, attend, first or attend

    def linear(self, name, x):
        return torch.einsum("...i,oi->...o", x, self.s[name + ".weight"]) + self.s[name + ".bias"]

    def norm(self, name, x, eps=1e-6):
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.square().mean(-1, keepdim=True) + eps).sqrt()
        return scaled * self.s[name + ".weight"] + self.s[name + ".bias"]

    def batch_norm(self, name, x):  # (B, C, H, W)
        mean, variance, weight, bias = (
            self.s[f"{name}.{part}"][:, None, None] for part in ("running_mean", "running_var", "weight", "bias")
        )
        return (x - mean) / (variance + 1e-5).sqrt() * weight + bias

    def convolve(self, weight, x, stride=1, rule="bchwij,ocij->bohw"):  # 3x3, padded by one
        windows = torch.nn.functional.pad(x, (1, 1, 1, 1)).unfold(2, 3, stride).unfold(3, 3, stride)
        return torch.einsum(rule, windows, weight)

    def by_channel(self, name, x):
        weight, bias = self.s[name + ".weight"][:, 0], self.s[name + ".bias"]
        return self.convolve(weight, x, rule="bchwij,cij->bchw") + bias[:, None, None]

    def gelu(self, x):
        return x * (1 + torch.erf(x / math.sqrt(2))) / 2

    def heads(self, x):  # (B, N, C) -> (B, H, N, D)
        return torch.stack(x.split(C // HEADS, -1), 1)

    def tokens(self, images):
        x = images
        for i in range(4):
            name = f"patch_embed.proj.{2 * i}"
            x = self.batch_norm(f"{name}.1", self.convolve(self.s[f"{name}.0.weight"], x, stride=2))
            x = self.gelu(x) if i < 3 else x
        weight = self.s["pos_embed.token_projection.weight"][:, :, 0, 0]
        rows = []
        for r in range(GRID[0]):
            for c in range(GRID[1]):
                waves = []
                for place, count in ((r, GRID[0]), (c, GRID[1])):
                    angle = 2 * math.pi * (place + 1) / (count + 1e-6)
                    for i in range(16):
                        scaled = angle / 10_000 ** (2 * i / 32)
                        waves += [math.sin(scaled), math.cos(scaled)]
                position = weight @ torch.tensor(waves, dtype=x.dtype) + self.s["pos_embed.token_projection.bias"]
                rows.append(x[:, :, r, c] + position)
        return torch.stack(rows, 1)

    def mixing(self, block, x):
        keys, values = self.linear(f"{block}.attn.kv", x).split(C, -1)
        k, v = self.heads(keys), self.heads(values)
        if f"{block}.attn.q.weight" in self.s:
            z = self.attend(self.heads(self.linear(f"{block}.attn.q", x)), k, v)
        else:
            z = self.first(k, v) if block == "blocks.0" else explicit_softmax(k, k, v)
        return self.linear(f"{block}.attn.proj", torch.cat(list(z.unbind(1)), -1))

    def channels(self, block, x):
        q, k = self.heads(self.linear(f"{block}.mlp.q", x)), self.heads(x)
        q, k = q.exp() / q.exp().sum(2, keepdim=True), k.exp() / k.exp().sum(2, keepdim=True)
        weight = 1 / (1 + (-torch.einsum("bhnd,bhn->bhd", q, k.mean(3))).exp())  # (B, H, D)
        weight = weight * self.s[f"{block}.mlp.temperature"][:, :, 0]
        name = f"{block}.mlp.mlp_v"
        h = self.linear(f"{name}.fc1", x)
        y = h.transpose(1, 2).reshape(len(x), HIDDEN, *GRID)
        y = self.batch_norm(f"{name}.dwconv.bn", self.gelu(self.by_channel(f"{name}.dwconv.conv1", y)))
        y = self.by_channel(f"{name}.dwconv.conv2", y)
        h = h + self.s[f"{name}.gamma"] * y.reshape(len(x), HIDDEN, -1).transpose(1, 2)
        value = self.norm(f"{block}.mlp.norm_v", self.linear(f"{name}.fc2", h), eps=1e-5)
        return value * weight.reshape(len(x), 1, C)

    def class_attention(self, block, x):
        seen = self.norm(f"{block}.norm1", x)
        q, k, v = (self.heads(self.linear(f"{block}.attn.{part}", seen)) for part in "qkv")
        z = explicit_softmax(q[:, :, :1], k, v)
        answer = self.linear(f"{block}.attn.proj", torch.cat(list(z.unbind(1)), -1))
        x = x + self.s[f"{block}.gamma1"] * torch.cat([answer, seen[:, 1:]], 1)
        x = self.norm(f"{block}.norm2", x)  # of all tokens, and what follows adds to the normed ones
        mlp = self.linear(f"{block}.mlp.fc2", self.gelu(self.linear(f"{block}.mlp.fc1", x[:, :1])))
        return x + torch.cat([self.s[f"{block}.gamma2"] * mlp, x[:, 1:]], 1)

    def __call__(self, images):
        x = self.tokens(images)
        for i in range(DEPTH):
            b = f"blocks.{i}"
            x = x + self.s[f"{b}.gamma1"] * self.mixing(b, self.norm(f"{b}.norm1", x))
            x = x + self.s[f"{b}.gamma2"] * self.channels(b, self.norm(f"{b}.norm2", x))
        x = torch.cat([self.s["cls_token"].expand(len(x), -1, -1), x], 1)
        for i in range(2):
            x = self.class_attention(f"cls_attn_blocks.{i}", x)
        return self.linear("head", self.norm("norm", x[:, 0]))


def pictures(dtype=torch.float32):
    return torch.randn(2, 3, 32, 48, generator=torch.Generator().manual_seed(1)).to(dtype)


def save(folder, state, **arguments):
    content = {"state_dict": state, "epoch": 3, "arch": NAME}
    if arguments:
        content["args"] = argparse.Namespace(model=NAME, **arguments)
    torch.save(content, folder / "model_best.pth.tar")
    return folder / "model_best.pth.tar"


def in_double(state):
    return {name: value.double() if value.is_floating_point() else value for name, value in state.items()}


@torch.no_grad()
@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-5), (torch.float64, 1e-9)])
def test_a_published_checkpoint_opens_strictly_and_gives_the_logits_of_a_plain_implementation(
    tmp_path, dtype, tolerance
):
    state = published_state()
    model = open_model(NAME, save(tmp_path, state), **SIZES)
    assert set(model.module.state_dict()) == set(state)
    expected = Plain(in_double(state))(pictures(torch.float64))
    logits = model.module.to(dtype)(pictures(dtype))
    assert expected.abs().max() > 0.1
    torch.testing.assert_close(logits.double(), expected, rtol=tolerance, atol=tolerance)


@torch.no_grad()
def test_the_published_rpc_model_has_no_queries_and_rpc_in_its_first_block(tmp_path):
    state = published_state(queries=False)
    model = open_model(NAME, save(tmp_path, state, robust=True), **SIZES)
    rpc = {"name": "rpc", "layers": "0", "iterations": 4, "lambda": 4.0, "variant": "code", "symmetric": True}
    assert model.source["attention"] == [rpc, {"name": "symmetric", "layers": "1"}]
    assert set(model.module.state_dict()) == set(state)

    def first(k, v):
        return explicit_rpc(k, v, iterations=4, lambd=4.0, variant="code")

    logits = model.module.double()(pictures(torch.float64))
    torch.testing.assert_close(logits, Plain(in_double(state), first=first)(pictures(torch.float64)), rtol=0, atol=1e-9)


def test_a_model_without_queries_asks_whether_rpc_was_on(tmp_path):
    path = save(tmp_path, published_state(queries=False))
    with pytest.raises(WeightsError, match=r"no query projection.*attention='symmetric'"):
        open_model(NAME, path, **SIZES)
    assert open_model(NAME, path, attention="symmetric", **SIZES).source["attention"][0]["name"] == "symmetric"


@torch.no_grad()
def test_converting_keeps_the_weights_and_changes_the_token_mixing_alone():
    model = open_model(NAME, "random", num_classes=CLASSES, **SIZES)
    images = pictures()
    before, kept = model.module(images), {k: v.clone() for k, v in model.module.state_dict().items()}
    torch.testing.assert_close(convert(model, "softmax").module(images), before)
    convert(model, "symmetric")
    after = model.module.state_dict()
    assert set(kept) - set(after) == {f"blocks.{i}.attn.q.{p}" for i in range(DEPTH) for p in ("weight", "bias")}
    assert all(torch.equal(after[name], kept[name]) for name in after)
    torch.testing.assert_close(model.module(images), Plain(after, first=lambda k, v: explicit_softmax(k, k, v))(images))
    convert(model, "rpc", layers=0, iterations=3)
    assert [d["name"] for d in describe_attention(model)] == ["rpc", "symmetric"]


def test_sizes_are_those_of_the_paper():
    tiny, small = sketch(NAME), sketch("fan_small_12_p16_224")
    assert round(sum(p.numel() for p in tiny.parameters()) / 1e6, 1) == 7.3
    assert (small.embed_dim, small.blocks[0].attn.num_heads, len(small.blocks)) == (384, 8, 12)
    widths = [step[0].out_channels for step in tiny.patch_embed.proj[::2]]
    assert widths == [24, 48, 96, 192]
    row = describe(NAME)
    assert (row.tokens, row.blocks, row.heads, row.width) == ("0+0+196", 12, 4, 192)
    assert not row.class_space


def test_both_branches_drop_paths_at_the_one_rate_of_all_blocks():
    module = open_model(NAME, "random", drop_path_rate=0.3, **SIZES).module
    assert {d.drop_prob for block in module.blocks for d in (block.drop_path1, block.drop_path2)} == {0.3}


def test_class_space_is_refused_because_tokens_reach_the_classes_through_class_attention():
    model = open_model(NAME, "random", **SIZES)
    assert model.layout.class_tokens == 0
    with pytest.raises(UnsupportedModelError, match="only through class attention"):
        model.to_class_space(torch.zeros(1, C))
    with pytest.raises(VitscopeError, match="no norm behind its last block"):
        model.run_with_cache(pictures(), ["ln_final.hook_normalized"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch_size": 7}, "patch_size=7: expected 4, 8, 16"),
        ({"img_size": 30}, "no multiple of patch_size"),
        ({"num_heads": 5}, "cannot be divided among num_heads=5"),
        ({"embed_dim": 36, "num_heads": 4}, "cannot be divided by 8"),
        ({"class_depth": 0}, "class_depth=0"),
        ({"dept": 3}, "unexpected keyword argument 'dept'"),
    ],
)
def test_sizes_that_cannot_be_are_refused(options, words):
    with pytest.raises(VitscopeError, match=words):
        open_model(NAME, "random", **{**SIZES, **options})


def test_analyses_and_attacks_run_on_it_and_class_space_says_why_it_does_not(tmp_path):
    sizes = {"img_size": 28, "patch_size": 4, "in_chans": 1, "embed_dim": 16, "num_heads": 2, "depth": 2}
    model = open_model(NAME, "random", num_classes=10, mlp_ratio=2, attention="rpc:layers=0,iterations=2", **sizes)
    data = vitscope.load_data("mnist5k", "test", images=8)
    run = vitscope.analyze(model, data, ["accuracy", "attention", "kpca"], out=tmp_path / "run", progress=False)
    assert {"attention", "kpca_reconstruction"} <= set(run.list_tables())
    with pytest.raises(VitscopeError, match="only through class attention"):
        vitscope.analyze(model, data, ["class_space"], out=tmp_path / "lens", progress=False)
    attacked = vitscope.attack(model, data, ["fgsm"], "8/255", tmp_path / "attack", progress=False)
    assert attacked.list_tables()
