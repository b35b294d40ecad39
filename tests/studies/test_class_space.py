"""What the programs of the class-embedding study print, restated in short, against vitscope's figure of that name.

Source: the study's definitions, read off its text and its programs. Each restatement is written for a whole set of
images at once, in float64 and without vitscope, so that it can be read beside the published definition. The model is a
ViT of three blocks with ten classes; tokens are [CLS] and 4 x 4 patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from scipy.stats import wilcoxon
from torch import Tensor, nn

from vitscope.analyses.class_space.composition import Composition
from vitscope.analyses.class_space.curves import published_area
from vitscope.analyses.class_space.identifiability import Identifiability
from vitscope.analyses.class_space.importance import MemoryImportance
from vitscope.analyses.class_space.memory_analysis import Memories
from vitscope.analyses.class_space.memory_tests import drawn_classes
from vitscope.analyses.class_space.perturbation import Perturbation
from vitscope.analyses.class_space.relevance import Place, relevance
from vitscope.analyses.class_space.ridge import Moments, add_batch, solve
from vitscope.analyses.control import shared_twin
from vitscope.analyses.one_pass import measure
from vitscope.data import load_data
from vitscope.data.batch import Batch
from vitscope.data.masks import to_tokens_nearest
from vitscope.data.transforms import build_transform
from vitscope.models import Model, open_model
from vitscope.models.preprocess_words import preprocess_in_words
from vitscope.models.preprocessing import Preprocess

BLOCKS, HEADS, CLASSES, IMAGES = 3, 4, 10, 12


@dataclass
class Study:
    """Hidden states of all images: per block the output `hs`, what attention and MLP add, and what they are made of."""

    hs: list[Tensor]  # each (B, N, C)
    attn: list[Tensor]
    mlp: list[Tensor]
    probs: list[Tensor]  # (B, H, N, N)
    keys: dict[str, list[Tensor]]  # attn: heads' outputs, concatenated; mlp: before the activation
    out: Tensor  # (B, classes)


def forward(m: Any, images: Tensor, perturb: str | None = None, tokens: Tensor | None = None) -> Study:
    x = m._pos_embed(m.patch_embed(images))
    x = x if tokens is None else x[:, tokens]
    s = Study([], [], [], [], {"attn": [], "mlp": []}, x)
    for block in m.blocks:
        b, n, c = x.shape
        q, k, v = block.attn.qkv(block.norm1(x)).reshape(b, n, 3, HEADS, c // HEADS).permute(2, 0, 3, 1, 4)
        a = (q @ k.transpose(-2, -1) * (c // HEADS) ** -0.5).softmax(-1)
        if perturb == "self_only":
            a = torch.cat([a[:, :, :1], torch.eye(n).to(a)[1:].expand(b, HEADS, n - 1, n)], 2)
        elif perturb == "no_cls":
            a = a.clone()
            a[:, :, 1:, 0] = 0
        key = (a @ v).transpose(1, 2).reshape(b, n, c)
        attn = block.attn.proj(key)
        x = x + attn
        pre = block.mlp.fc1(block.norm2(x))
        mlp = block.mlp.fc2(nn.functional.gelu(pre))
        x = x + mlp
        for found, value in ((s.hs, x), (s.attn, attn), (s.mlp, mlp), (s.probs, a), (s.keys["attn"], key)):
            found.append(value)
        s.keys["mlp"].append(pre)
    s.out = m.head(m.norm(x[:, 0]))
    return s


@dataclass
class Scene:
    model: Model
    batch: Batch
    twice: Any  # the module in float64
    study: Study
    random: Study  # the same of random weights
    random_module: Any
    masks: Tensor  # (B, 16): the study's labels of image tokens

    def project(self, x: Tensor) -> Tensor:
        return self.twice.head(self.twice.norm(x))

    def pos(self, x: Tensor) -> Tensor:
        """Where the true class stands in descending order: (B, N)."""
        order = self.project(x).argsort(-1, descending=True)
        return (order == self.batch.labels[:, None, None]).long().argmax(-1)

    def logit(self, x: Tensor) -> Tensor:
        p = self.project(x)
        return p.gather(-1, self.batch.labels[:, None, None].expand(*p.shape[:2], 1))[..., 0]


@pytest.fixture(scope="module")
def scene() -> Scene:
    import copy

    with torch.random.fork_rng():
        torch.manual_seed(0)
        size = {"img_size": 28, "patch_size": 7, "in_chans": 1, "embed_dim": 32, "depth": BLOCKS, "num_heads": HEADS}
        module = timm.create_model("vit_tiny_patch16_224", num_classes=CLASSES, **size).eval()
        with torch.no_grad():
            for p in module.parameters():
                p.add_((0.3 if p.ndim > 1 else 0.1) * torch.randn(p.shape) / p.shape[-1] ** 0.25)
        images = torch.randn(IMAGES, 1, 28, 28)
        labels = torch.randint(0, CLASSES, (IMAGES,))
        masks = torch.randint(0, 2, (IMAGES, 28, 28), dtype=torch.uint8)
        model = open_model(module)
        labels[:6] = model(images[:6]).argmax(1).detach()  # half of them right
    batch = Batch(images, labels, torch.arange(IMAGES), [f"{i}.png" for i in range(IMAGES)], masks, mask_rule="corner")
    twice, twin = (copy.deepcopy(m.module).double().requires_grad_(False) for m in (model, shared_twin(model, 0)))
    with torch.no_grad():
        study, random = forward(twice, images.double()), forward(twin, images.double())
    return Scene(model, batch, twice, study, random, twin, masks[:, ::7, ::7].flatten(1))


@pytest.fixture(scope="module")
def tables(scene) -> dict[str, Any]:
    """What vitscope measures under variant=code, mask_rule=corner."""
    analyses = [
        Identifiability(variant="code", control="random"),
        Composition(variant="code"),
        Memories(variant="code", names=True),
        Perturbation(variant="code"),
    ]
    measure(scene.model, [scene.batch], analyses)
    return {name: table for a in analyses for name, table in a.tables().items()}


def of(table: Any, **where: Any) -> Any:
    """The one row."""
    for column, value in where.items():
        table = table[table[column] == value]
    assert len(table) == 1
    return table.iloc[0]


# masks and lists


@pytest.mark.parametrize("size", [(375, 500), (333, 500), (240, 190)])
def test_a_token_has_the_label_of_the_upper_left_pixel_in_the_mask_as_it_is_stored(size):
    """The study resizes the stored mask to 14 x 14, nearest: pixel floor(i H / 14), floor(j W / 14)."""
    height, width = size
    mask = np.random.default_rng(0).integers(0, 2, size, dtype=np.uint8)
    expected = [mask[i * height // 14, j * width // 14] for i in range(14) for j in range(14)]
    recipe = preprocess_in_words(Preprocess((3, 224, 224), (0.5,) * 3, (0.5,) * 3), "class-embedding")
    _, seen = build_transform(recipe, "corner")(Image.new("RGB", (width, height)), Image.fromarray(mask))
    assert to_tokens_nearest(seen[None], (14, 14), "corner")[0].tolist() == expected


def test_the_list_of_images_is_taken_as_it_is(tmp_path):
    for folder in ("n02123045", "n02124075"):
        (tmp_path / "validation" / folder).mkdir(parents=True)
        for i in range(3):
            Image.new("RGB", (8, 8)).save(tmp_path / "validation" / folder / f"ILSVRC2012_val_{folder[-2:]}{i}.JPEG")
    rows = ["imagenet_id,index,cat,img_name,img_index", 'n02124075,285,"Egyptian cat",ILSVRC2012_val_752.JPEG,0']
    rows += ['n02123045,281,"tabby, tabby cat",ILSVRC2012_val_451.JPEG,0']
    (tmp_path / "validation_stim_info.csv").write_text("\n".join(rows) + "\n")
    data = load_data(tmp_path, "validation", list_file=tmp_path / "validation_stim_info.csv")
    assert [path.rpartition("/")[2] for path in data.paths] == ["ILSVRC2012_val_752.JPEG", "ILSVRC2012_val_451.JPEG"]
    assert not [w for w in data.warnings if "not there" in w]


# extractor.py, notebook 1


def test_identifiability_rates_and_change_rates(scene, tables):
    level, change = tables["class_space_identifiability"], tables["class_space_change"]
    for b in range(BLOCKS):
        pos = scene.pos(scene.study.hs[b])[:, 1:]
        row = of(level, block=b, point="resid_post", tokens="image")
        assert row["mean"] == pytest.approx(float((1 - pos / CLASSES).mean()), abs=1e-6)
        assert row["rate_per_image"] == pytest.approx(100 * float(((pos == 0).sum(1) / 16).mean()), abs=1e-6)
        assert row["images_with"] == pytest.approx(100 * float(((pos == 0).sum(1) > 0).double().mean()), abs=1e-6)
        if b:
            before = scene.logit(scene.study.hs[b - 1])
            for point, states in (("resid_post", scene.study.hs), ("attn_out", scene.study.attn)):
                rose = scene.logit(states[b]) - before > 0
                row = of(change, block=b, point=point, tokens="image")
                assert row["rate"] == pytest.approx(100 * float(rose[:, 1:].double().mean()), abs=1e-6)


def test_wilcoxon_of_all_tokens_against_the_random_model(scene, tables):
    twin = scene.random_module
    for b in range(BLOCKS):
        order = twin.head(twin.norm(scene.random.hs[b])).argsort(-1, descending=True)
        random = (order == scene.batch.labels[:, None, None]).long().argmax(-1)
        own = scene.pos(scene.study.hs[b])
        p = wilcoxon(-own.flatten(), -random.flatten(), alternative="greater", method="approx").pvalue
        assert of(tables["class_space_against_random"], block=b)["p_wilcoxon"] == pytest.approx(p, abs=1e-6)


def test_class_labelled_minus_context_tokens(scene, tables):
    for b in range(1, BLOCKS):
        rise = (scene.logit(scene.study.attn[b]) - scene.logit(scene.study.hs[b - 1]))[:, 1:]
        expected = float(rise[scene.masks == 1].mean() - rise[scene.masks == 0].mean())
        row = of(tables["class_space_class_vs_context"], block=b, point="attn_out", measure="logit change")
        assert row["difference_pooled"] == pytest.approx(expected, abs=1e-6)


# perturbation/*.py


@pytest.mark.parametrize(("kind", "perturb"), [("self_only", "self_only"), ("no_cls_bare", "no_cls")])
def test_attention_perturbation_counts_the_class_token(scene, tables, kind, perturb):
    with torch.no_grad():
        after = forward(scene.twice, scene.batch.images.double(), perturb)
    expected = 100 * float((scene.pos(after.hs[-1]) == 0).double().mean())
    row = of(tables["perturbation"], perturbation=kind, block=BLOCKS - 1, tokens="image")
    assert row["rate_after_with_class"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(("kind", "kept", "group"), [("without_context", 1, "object"), ("without_class", 0, "context")])
def test_token_perturbation_is_the_mean_of_the_images_rates_with_the_class_token(scene, tables, kind, kept, group):
    rates = []
    for i in range(IMAGES):
        tokens = torch.cat([torch.tensor([0]), (scene.masks[i] == kept).nonzero().flatten() + 1])
        with torch.no_grad():
            after = forward(scene.twice, scene.batch.images[i : i + 1].double(), tokens=tokens)
            order = scene.project(after.hs[-1])[0].argsort(-1, descending=True)
        rates.append(float((order[:, 0] == scene.batch.labels[i]).double().mean()))
    row = of(tables["perturbation"], perturbation=kind, block=BLOCKS - 1, tokens=group)
    assert row["rate_after_with_class"] == pytest.approx(100 * np.mean(rates), abs=1e-6)


# notebook 2


def test_residual_composition_never_looks_at_the_mlp(scene, tables):
    top = {k: [scene.project(x).argmax(-1) for x in getattr(scene.study, k)] for k in ("hs", "attn", "mlp")}
    for b in range(1, BLOCKS):
        own = top["hs"][b]
        expected = {
            "attention": own == top["attn"][b],
            "mlp": own == top["mlp"][b],
            "previous": own == top["hs"][b - 1],
        }
        expected["composition"] = (own != top["hs"][b - 1]) & (own != top["attn"][b])
        for kind, tokens in (("class", slice(0, 1)), ("image", slice(1, None))):
            for name, match in expected.items():
                row = of(tables["class_space_composition"], block=b, tokens=kind, source=name)
                assert row["share"] == pytest.approx(100 * float(match[:, tokens].double().mean()), abs=1e-6), name


def values(module: Any, b: int, layer: str) -> Tensor:
    block = module.blocks[b]
    return (block.attn.proj if layer == "attn" else block.mlp.fc2).weight.detach()


def unit(x: Tensor, dim: int) -> Tensor:
    return x / x.norm(dim=dim, keepdim=True)


@pytest.mark.parametrize("layer", ["attn", "mlp"])
def test_class_value_agreement_and_its_wilcoxon_test(scene, tables, layer):
    for b in range(BLOCKS):
        best = [
            (unit(m.head.weight.detach(), 1) @ unit(values(m, b, layer), 0)).amax(1).numpy()
            for m in (scene.twice, scene.random_module)
        ]
        row = of(tables["class_space_value_agreement"], block=b, layer=layer)
        assert row["mean"] == pytest.approx(best[0].mean(), abs=1e-6)
        assert row["mean_control"] == pytest.approx(best[1].mean(), abs=1e-6)
        assert row["p_wilcoxon"] == pytest.approx(wilcoxon(*best, alternative="greater").pvalue, abs=1e-6)


@pytest.mark.parametrize("layer", ["attn", "mlp"])
def test_key_value_agreement_of_the_class_of_a_random_class_and_of_right_against_wrong(scene, tables, layer):
    labels = scene.batch.labels
    drawn = drawn_classes(range(IMAGES), labels, CLASSES, seed=0, other=False)  # the study draws among all classes
    right = scene.study.out.argmax(1) == labels
    for b in range(BLOCKS):
        logits = scene.twice.head.weight.detach() @ values(scene.twice, b, layer)
        active, best = scene.study.keys[layer][b].topk(5, -1).indices, logits.topk(5, 1).indices
        rates = {}
        for name, classes in (("agreement", labels), ("agreement_null", drawn)):
            rates[name] = torch.stack([torch.isin(a, best[c]).any(-1) for a, c in zip(active, classes)]).double()
        said = logits.argmax(0)[active]
        top = scene.project(getattr(scene.study, layer)[b]).argmax(-1)
        rates["composed"] = (said == top[..., None]).any(-1).double()
        for kind, tokens in (("class", slice(0, 1)), ("image", slice(1, None))):
            row = of(tables["class_space_memories"], block=b, layer=layer, tokens=kind)
            for name, rate in rates.items():
                assert row[name] == pytest.approx(100 * float(rate[:, tokens].mean()), abs=1e-6), name
        cls = rates["agreement"][:, 0]
        row = of(tables["class_space_memories_right_wrong"], block=b, layer=layer)
        observed = float(cls[right].mean() - cls[~right].mean())
        assert row["difference"] == pytest.approx(100 * observed, abs=1e-6)
        generator = torch.Generator().manual_seed(b)  # the study draws 300 shuffles; here enough to see its expectation
        orders = torch.stack([torch.randperm(IMAGES, generator=generator) for _ in range(4000)])
        shuffled = cls[orders[:, : int(right.sum())]].mean(1) - cls[orders[:, int(right.sum()) :]].mean(1)
        assert row["p_published"] == pytest.approx(float((shuffled > observed + 1e-9).double().mean()), abs=0.03)
        names = tables["class_space_memory_classes"]
        listed = names[(names["block"] == b) & (names["layer"] == layer)].sort_values("memory")
        assert listed["class"].tolist() == logits.argmax(0).tolist()


# gradients.py, tutorial, notebook 3


def published_gradients(scene: Scene, b: int, kind: str, classes: Tensor) -> tuple[Tensor, Tensor]:
    """Of one block's attention output at [CLS]: d / d attention (B, H, N) and d / d key coefficients (B, C)."""
    m = scene.twice
    a, key = scene.study.probs[b], scene.study.keys["attn"][b]
    x = m._pos_embed(m.patch_embed(scene.batch.images.double())) if b == 0 else scene.study.hs[b - 1]
    v = m.blocks[b].attn.qkv(m.blocks[b].norm1(x)).unflatten(-1, (3, HEADS, -1))[:, :, 2].transpose(1, 2).detach()
    found = []
    for leaf in (a.clone().requires_grad_(), key.clone().requires_grad_()):
        inside = (leaf @ v).transpose(1, 2).flatten(2) if leaf.ndim == 4 else leaf
        logits = m.head(m.norm(m.blocks[b].attn.proj(inside)))[:, 0]
        if kind == "cross_entropy":  # softmax before a loss that takes logits
            value = nn.functional.cross_entropy(logits.softmax(1), classes, reduction="sum")
        else:  # called a probability
            value = logits.gather(1, classes[:, None]).sum()
        found.append(torch.autograd.grad(value, leaf)[0][..., 0, :])
    return found[0], found[1]


@pytest.mark.parametrize(("kind", "method", "sign"), [("cross_entropy", "_code", -1), ("cat_prob", "_logit", 1)])
def test_gradients_of_one_block_one_head_and_any_class(scene, kind, method, sign):
    for classes in (scene.batch.labels, torch.full((IMAGES,), 7)):
        grads = [published_gradients(scene, b, kind, classes)[0] for b in range(BLOCKS)]
        images, name = scene.batch.images.double(), f"class_gradients{method}"
        exact = Model(scene.twice, scene.model.name, scene.model.preprocess)
        one = relevance(exact, images, classes, name, Place(block=1, head=2))
        torch.testing.assert_close(one.double(), sign * grads[1][:, 2, 1:], rtol=0, atol=1e-6)
        whole = sign * torch.stack(grads).sum((0, 2))[:, 1:]
        torch.testing.assert_close(relevance(exact, images, classes, name).double(), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("kind", "objective", "sign"), [("cross_entropy", None, -1), ("cat_prob", "logit", 1)])
def test_gradients_of_the_key_coefficients(scene, kind, objective, sign):
    analysis = MemoryImportance(variant="code", objective=objective, top=0)
    measure(scene.model, [scene.batch], [analysis])
    table = analysis.tables()["class_space_memory_importance"]
    for b in range(BLOCKS):
        expected = sign * published_gradients(scene, b, kind, scene.batch.labels)[1].mean(0)
        found = table[(table["block"] == b) & (table["layer"] == "attn")].sort_values("memory")["gradient"]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)


def test_chefers_rule(scene):
    study = forward(scene.twice, scene.batch.images.double().requires_grad_())
    grads = torch.autograd.grad(study.out.gather(1, scene.batch.labels[:, None]).sum(), study.probs)
    r = torch.eye(17, dtype=torch.float64).expand(IMAGES, 17, 17)
    for a, g in zip(study.probs, grads):
        r = r + (g * a).clamp(min=0).mean(1) @ r
    exact = Model(scene.twice, scene.model.name, scene.model.preprocess)
    found = relevance(exact, scene.batch.images.double(), scene.batch.labels, "chefer")
    torch.testing.assert_close(found.double(), r[:, 0, 1:].detach(), rtol=0, atol=1e-6)


def test_area_under_the_perturbation_curve():
    accuracy = np.linspace(0.2, 0.8, 50) ** 2  # with 0, 1, .., 49 tokens; the study has 1 .. 48
    expected = accuracy[1:49].sum() / (49 * accuracy[1:49].max())
    assert published_area(accuracy.tolist(), list(range(50))) == pytest.approx(expected, abs=1e-6)


# linear_probing/prober.py


def test_ridge_with_intercept_on_plus_minus_one_targets():
    generator = np.random.default_rng(0)
    x, labels, new = generator.normal(size=(40, 6)), generator.integers(0, 4, 40), generator.normal(size=(9, 6))
    targets = np.where(np.arange(4) == labels[:, None], 1.0, -1.0)
    centred = x - x.mean(0)
    weights = np.linalg.solve(centred.T @ centred + np.eye(6), centred.T @ (targets - targets.mean(0)))  # alpha 1
    expected = (new - x.mean(0)) @ weights + targets.mean(0)
    sums = Moments.zeros(1, 6, 4)
    add_batch(sums.second, sums.classes, torch.from_numpy(x)[None], torch.from_numpy(labels))
    sums.counts += torch.bincount(torch.from_numpy(labels), minlength=4)
    found = solve(sums, [1.0]).scores(torch.from_numpy(new)[None])[0, 0]
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-6)
