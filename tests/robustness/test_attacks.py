"""Every attack on a trained model: in the ball, seeded per image, stronger with its budget; foolbox as oracle."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitscope.errors import NumericalError, VitscopeError
from vitscope.robustness import create_attack, list_attacks, perturb
from vitscope.robustness.attacks import Attack, Victims
from vitscope.robustness.attacks.registry import register_attack
from vitscope.robustness.attacks.sparse_l1 import sparse_direction
from vitscope.robustness.attacks.spsa import estimate_gradient
from vitscope.robustness.norms import sizes
from vitscope.robustness.target import Target, attacking
from vitscope.robustness.threat import Threat
from vitscope.tasks.classification import margin

QUICK = {
    "pgd": {"steps": 5},
    "spsa": {"steps": 3, "samples": 4},
    "sparse-l1": {"steps": 5},
    "autoattack": {"parts": ("apgd-ce",)},
    "apgd-ce": {"steps": 10},
    "square": {"queries": 30},
    "cw": {"steps": 20, "searches": 3},
    "hopskipjump": {"steps": 1, "queries": 8},
}
EPS = {"linf": "32/255", "l2": "2", "l1": "15"}
VALUES = {"linf": 32 / 255, "l2": 2.0, "l1": 15.0}
OWN = [name for name in list_attacks() if not create_attack(name).needs]
CASES = [(name, norm) for name in list_attacks() for norm in create_attack(name).norms if name != "autoattack"]


def library(name: str) -> None:
    needs = create_attack(name).needs
    if needs:
        pytest.importorskip(needs, reason=f"{needs} is not installed: pip install 'vitscope[attacks]'")


def answers(model, images):
    with attacking(model):
        return Target(model, Threat()).predict(images)


@pytest.fixture
def right(model, pictures) -> tuple[Tensor, Tensor]:
    """24 digits that the model reads."""
    images, labels = pictures
    where = (answers(model, images) == labels).nonzero().flatten()[:24]
    assert len(where) == 24
    return images[where], labels[where]


@pytest.mark.parametrize(("name", "norm"), CASES)
def test_every_attack_stays_in_the_ball_leaves_no_trace_and_repeats_itself(name, norm, model, right):
    library(name)
    if name == "hopskipjump":  # one image at a time
        right = right[0][:2], right[1][:2]
    state, images = torch.get_rng_state(), right[0].clone()
    found = perturb(model, *right, name, EPS[norm], norm=norm, **QUICK.get(name, {}))
    assert float(found.min()) >= 0
    assert float(found.max()) <= 1
    assert float(sizes(found - right[0], norm).max()) <= VALUES[norm] * (1 + 1e-4)
    assert (found != right[0]).any()
    assert torch.equal(right[0], images)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(p.grad is None for p in model.module.parameters())
    assert torch.equal(perturb(model, *right, name, EPS[norm], norm=norm, **QUICK.get(name, {})), found)


@pytest.mark.parametrize("name", list_attacks())
def test_no_budget_changes_nothing(name, model, right):
    library(name)
    norm = create_attack(name).norms[0]
    options = QUICK.get(name, {})
    assert torch.equal(perturb(model, right[0][:4], right[1][:4], name, 0.0, norm=norm, **options), right[0][:4])


def test_autoattack_is_at_least_as_strong_as_its_first_part(model, right):
    library("autoattack")
    images, labels = right[0][:4], right[1][:4]
    one = perturb(model, images, labels, "apgd-ce", "12/255", steps=100)
    all_ = perturb(model, images, labels, "autoattack", "12/255", parts=("apgd-ce", "fab-t"))
    assert (answers(model, all_) == labels).sum() <= (answers(model, one) == labels).sum()


def test_hopskipjump_needs_answers_alone_and_comes_nearer_with_every_step(model, right):
    library("hopskipjump")
    images, labels = right[0][:2], right[1][:2]
    victims = Victims(images, labels, torch.arange(2), Threat("l2"))
    lengths = []
    with attacking(model):
        target = Target(model, victims.threat)
        target.gradient = None  # whoever asks for one fails
        for steps in (1, 6):
            attack = create_attack("hopskipjump", steps=steps, queries=10)
            found = attack.perturb(target, victims, float("inf"))
            assert (target.predict(found) != labels).all()
            lengths.append(float(sizes(found - images, "l2").mean()))
        alone = attack.perturb(target, victims.rows(torch.tensor([1])), float("inf"))
    assert lengths[1] < 0.9 * lengths[0], lengths
    torch.testing.assert_close(alone[0], found[1])  # whoever else is in its batch


@pytest.mark.parametrize("name", OWN)
def test_draws_belong_to_the_image_and_not_to_its_batch(name, model, right):
    norm = create_attack(name).norms[0]
    options = QUICK.get(name, {})
    together = perturb(model, *right, name, EPS[norm], norm=norm, **options)
    where = torch.tensor([7, 3])
    apart = perturb(model, right[0][where], right[1][where], name, EPS[norm], norm=norm, indices=where, **options)
    same = ((together[where] - apart).abs() < 1e-5).double().mean()
    assert same > 0.98  # another batch size rounds differently: the sign of a vanishing gradient may flip


def test_another_seed_starts_elsewhere(model, right):
    one, two = (perturb(model, *right, "noise", "8/255", seed=seed) for seed in (0, 1))
    assert not torch.equal(one, two)


@pytest.mark.parametrize(("norm", "eps"), [("linf", 16 / 255), ("l2", 1.5)])
@pytest.mark.parametrize("steps", [1, 10])
def test_foolbox_finds_the_same_pictures(norm, eps, steps, model, pictures):
    foolbox = pytest.importorskip("foolbox", reason="the oracle foolbox is not installed: pip install 'vitscope[test]'")
    images, labels = pictures
    mean, std = model.preprocess.mean, model.preprocess.std
    wrapped = foolbox.PyTorchModel(model.module, bounds=(0, 1), preprocessing={"mean": mean, "std": std, "axis": -3})
    if steps == 1:
        theirs = getattr(foolbox.attacks, f"{norm.title()}FastGradientAttack")(random_start=False)
        ours = perturb(model, images, labels, "fgsm", eps, norm=norm)
    else:
        kind = getattr(foolbox.attacks, f"{norm.title()}ProjectedGradientDescentAttack")
        theirs = kind(steps=steps, rel_stepsize=0.2, random_start=False)
        ours = perturb(model, images, labels, "pgd", eps, norm=norm, steps=steps, step=0.2, random_start=False)
    _, expected, success = theirs(wrapped, images, labels, epsilons=eps)
    close = ((ours - expected).abs() < 1e-5).double().mean()
    assert close > 0.999
    assert abs(int((answers(model, ours) != labels).sum()) - int(success.sum())) <= 1


def test_attacks_grow_with_their_budget_and_pgd_beats_fgsm_beats_noise(model, pictures):
    images, labels = pictures
    clean = int((answers(model, images) == labels).sum())
    left = {}
    for name in ("noise", "fgsm", "pgd"):
        counts = [
            int((answers(model, perturb(model, images, labels, name, k / 255)) == labels).sum()) for k in (4, 12, 24)
        ]
        assert all(later <= earlier + 2 for earlier, later in zip([clean, *counts], counts)), counts
        left[name] = counts[-1]
    assert left["pgd"] <= left["fgsm"] < left["noise"]


def test_restarts_and_momentum_only_help(model, right):
    few = {"steps": 3, "step": 0.4}
    once = answers(model, perturb(model, *right, "pgd", "12/255", **few)) == right[1]
    more = answers(model, perturb(model, *right, "pgd", "12/255", restarts=5, **few)) == right[1]
    assert not (more & ~once).any()  # what the first attempt fooled stays fooled
    assert more.sum() <= once.sum()
    assert not torch.equal(
        perturb(model, *right, "pgd", "12/255", momentum=0.9, **few), perturb(model, *right, "pgd", "12/255", **few)
    )


@pytest.mark.parametrize("momentum", [0.0, 1.0])
def test_with_stop_a_picture_is_the_first_that_fools(momentum, model, right):
    images, labels = right
    steps, eps = 6, 0.06
    pgd = {"step": 0.3, "momentum": momentum}
    expected = perturb(model, images, labels, "pgd", eps, steps=1, stop=True, **pgd)
    left = answers(model, expected) == labels  # also: not fooled by the random start or by one step
    for count in range(2, steps + 1):  # brute force: the whole attack again with one step more
        longer = perturb(model, images, labels, "pgd", eps, steps=count, **pgd)
        expected[left] = longer[left]
        left &= answers(model, longer) == labels
    found = perturb(model, images, labels, "pgd", eps, steps=steps, stop=True, **pgd)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    last = perturb(model, images, labels, "pgd", eps, steps=steps, **pgd)
    assert (found - last).abs().amax() > 0.01, "someone was fooled early"
    assert (answers(model, found) == labels).sum() <= (answers(model, last) == labels).sum()


def test_the_estimated_gradient_points_along_the_real_one(model, right):
    images, labels = right[0][:2], right[1][:2]
    generators = [torch.Generator().manual_seed(i) for i in range(2)]
    with attacking(model):
        target = Target(model, Threat())
        real, _ = target.gradient(images, labels, margin)
        estimate = estimate_gradient(target, images, labels, generators, 200, 1e-3)
    cosine = torch.nn.functional.cosine_similarity(real.flatten(1), estimate.flatten(1))
    assert cosine.min() > 0.35  # 200 draws in 784 dimensions: about sqrt(200 / 984) = 0.45


def test_a_sparse_direction_moves_the_largest_entries_that_can_move():
    gradient = torch.tensor([[[[5.0, -4.0, 3.0, 0.1]]]])
    images = torch.tensor([[[[1.0, 0.5, 0.5, 0.5]]]])  # the first is at the edge
    assert sparse_direction(gradient, images, 0.5, (0.0, 1.0)).flatten().tolist() == [0.0, -0.5, 0.5, 0.0]
    assert sparse_direction(gradient, images, 0.5, None).flatten().tolist() == [0.5, -0.5, 0.0, 0.0]


def test_sparse_l1_changes_few_pixels(model, right):
    found = perturb(model, *right, "sparse-l1", "15", norm="l1", steps=10)
    changed = (found != right[0]).flatten(1).sum(1)
    assert changed.max() <= 10 * 8  # 1 % of 784 pixels in each of 10 steps


@pytest.mark.parametrize(
    ("call", "complaint"),
    [
        (lambda: create_attack("pgdd"), "Did you mean pgd"),
        (lambda: create_attack("pgd", step_size=1), "no option 'step_size'.*It takes steps"),
        (lambda: create_attack("pgd", steps=0), "steps must be at least 1"),
        (lambda: create_attack("sparse-l1", sparsity=1.0), "share from 0"),
        (lambda: create_attack("nowhere:Mine"), "cannot be imported"),
        (lambda: create_attack("torch.nn:Linear"), "not an attack"),
        (lambda: create_attack("pgd").check(Threat("l1")), "bounds linf or l2, not l1"),
        (lambda: create_attack("cw").check(Threat("l2", bounds=None)), "published protocol has none"),
    ],
)
def test_what_cannot_be_asked_for_is_refused(call, complaint):
    with pytest.raises(VitscopeError, match=complaint):
        call()


def test_a_library_that_is_missing_is_named_with_how_to_install_it(monkeypatch):
    monkeypatch.setattr("vitscope.robustness.attacks.carlini_wagner.CarliniWagner.needs", "no_such_package")
    with pytest.raises(VitscopeError, match=r"vitscope\[attacks\]"):
        create_attack("cw").check(Threat("l2"))


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        (lambda images: images * float("nan"), "NaN or infinity"),
        (lambda images: 1 - images, "left the linf ball"),
        (lambda images: images - 0.01, "bounds"),
    ],
)
def test_an_attack_of_ones_own_that_misbehaves_is_an_error(change, complaint, model, right):
    class Mine(Attack):
        def perturb(self, target: Target, victims: Victims, eps: float) -> Tensor:
            return change(victims.images)

    register_attack("mine")(Mine)
    with pytest.raises(NumericalError, match=complaint):
        perturb(model, *right, "mine", "4/255")


def test_perturb_refuses_missing_labels_and_normalised_images(model, right):
    with pytest.raises(VitscopeError, match="true class of every image"):
        perturb(model, right[0], right[1] - 10, "fgsm", "4/255")
    with pytest.raises(VitscopeError, match="already normalised"):
        perturb(model, (right[0] - 0.5) / 0.5, right[1], "fgsm", "4/255")
    with pytest.raises(VitscopeError, match="one epsilon"):
        perturb(model, *right, "fgsm", "1/255..3/255")


@pytest.mark.parametrize(
    ("name", "options", "complaint"),
    [
        ("pgd", {"steps": 2.5}, "steps must be a whole number, not 2.5"),
        ("pgd", {"steps": "x"}, "steps must be a whole number, not 'x'"),
        ("pgd", {"step": -1.0}, "step must be above 0"),
        ("pgd", {"stop": 1}, "stop must be true or false"),
        ("spsa", {"delta": 0}, "delta must be above 0"),
        ("spsa", {"variant": "paper"}, "variant must be exact or code"),
        ("sparse-l1", {"variant": "paper"}, "variant must be exact or code"),
    ],
)
def test_an_option_of_another_kind_is_refused(name, options, complaint):
    with pytest.raises(VitscopeError, match=complaint):
        create_attack(name, **options)
