"""What attacks cost: a PGD step in forward passes, six epsilons in cumulative mode, memory over many images.

    python benchmarks/attacks.py                                             # random weights, noise as pictures
    python benchmarks/attacks.py --weights tiny.safetensors --data imagenet  # a real model on real pictures

With random weights the true class is what the model says, so that there is something to attack.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator

import torch
from torch import Tensor

from timing import interleaved, report
from vitscope.analyses import measure
from vitscope.data import load_data
from vitscope.data.batch import Batch
from vitscope.models import Model, open_model
from vitscope.robustness.attack_study import AttackStudy
from vitscope.robustness.attacks import Victims, create_attack
from vitscope.robustness.attacks.pgd import ascend
from vitscope.robustness.budgets import sweep
from vitscope.robustness.target import Target, attacking
from vitscope.robustness.threat import make_threat, pixels_of

MODEL, BATCH, SIX_BATCH, STEPS = "vit_tiny_patch16_224.augreg_in21k_ft_in1k", 16, 6, 5
SIX = "1/255..6/255"
MEMORY_BOUND = 1.05


def pictures(model: Model, data: str | None) -> tuple[Tensor, Tensor]:
    """(B, 3, 224, 224) in [0, 1] and their classes; all of them right."""
    if data is None:
        generator = torch.Generator().manual_seed(0)
        images = torch.randint(0, 256, (BATCH, 3, 224, 224), generator=generator) / 255
        with torch.no_grad():
            return images, Target(model, make_threat(SIX))(images).argmax(1)
    (batch,) = load_data(data, "val", images=2 * BATCH).batches(model.preprocess, 2 * BATCH)
    with torch.no_grad():
        right = (model(batch.images).argmax(1) == batch.labels).nonzero().flatten()[:BATCH]
    return pixels_of(batch.images[right], model.preprocess), batch.labels[right]


def time_a_step(model: Model, images: Tensor, labels: Tensor) -> None:
    threat = make_threat("1/255")
    target, victims = Target(model, threat), Victims(images, labels, torch.arange(len(labels)), threat)

    def forward() -> None:
        with torch.no_grad():
            target(images)

    contenders: dict[str, Callable[[], object]] = {
        "plain forward": forward,
        "PGD step": lambda: ascend(target, victims, 1 / 255, steps=1, step=0.25 / 255),
    }
    if (theirs := foolbox_step(model, images, labels)) is not None:
        contenders["PGD step, foolbox"] = theirs
    print(f"one step of PGD, {len(images)} images")
    report(interleaved(contenders), "plain forward", {"PGD step": 2.9})


def foolbox_step(model: Model, images: Tensor, labels: Tensor) -> Callable[[], object] | None:
    """Its weights take part in its backward pass, as in a plain use of the library."""
    try:
        import foolbox
    except ImportError:
        return None
    values = {"mean": model.preprocess.mean, "std": model.preprocess.std, "axis": -3}
    wrapped = foolbox.PyTorchModel(model.module, bounds=(0, 1), preprocessing=values)
    attack = foolbox.attacks.LinfPGD(steps=1, rel_stepsize=0.25, random_start=False)
    criterion = foolbox.criteria.Misclassification(labels)

    def step() -> None:
        for parameter in model.module.parameters():
            parameter.requires_grad_(True)
        attack.run(wrapped, images, criterion, epsilon=1 / 255)
        for parameter in model.module.parameters():
            parameter.requires_grad_(False)
            parameter.grad = None

    return step


def time_six_epsilons(model: Model, images: Tensor, labels: Tensor) -> None:
    attack = create_attack("pgd", steps=STEPS)
    left = {}

    def run(eps: str, cumulative: bool) -> Callable[[], object]:
        threat = make_threat(eps)
        victims = Victims(images, labels, torch.arange(len(labels)), threat)

        def go() -> None:
            done = sweep(Target(model, threat), victims, attack, labels, labels.clone(), cumulative=cumulative)
            left[eps, cumulative] = done.surviving.sum(1).tolist()

        return go

    contenders = {
        "one epsilon": run("1/255", True),
        "six, cumulative": run(SIX, True),
        "six, each by itself": run(SIX, False),
    }
    print(f"\nPGD of {STEPS} steps, {len(images)} images")
    report(interleaved(contenders, repeats=9, warmup=1), "one epsilon", {"six, cumulative": 4.0})
    print(f"still right after 1/255 .. 6/255: {left[SIX, True]} of {len(images)}")


def peak_memory(batches: int) -> int:
    """Attack so many batches in this process and return the peak of resident memory in bytes."""
    model = open_model(MODEL, "random")

    def read() -> Iterator[Batch]:
        for number in range(batches):
            generator = torch.Generator().manual_seed(number)
            images = (torch.randint(0, 256, (4, 3, 224, 224), generator=generator) / 255 - 0.5) / 0.5
            with torch.no_grad():
                labels = model(images).argmax(1)
            indices = torch.arange(4) + 4 * number
            yield Batch(images, labels, indices, [""] * 4, number=number)

    study = AttackStudy({"fgsm": {}, "pgd": {"steps": 2}}, "1/255,2/255")
    measure(model, read(), [study], on_batch=lambda batch: study.rows.clear())
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def compare_memory() -> None:
    few, many = (
        int(subprocess.run([sys.executable, __file__, "--here", n], capture_output=True, text=True, check=True).stdout)
        for n in ("4", "20")
    )
    verdict = "kept" if many <= MEMORY_BOUND * few else "MISSED"
    print(f"\npeak memory of 16 and of 80 images: {few / 2**20:.0f} and {many / 2**20:.0f} MiB, ratio {many / few:.3f}")
    print(f"bound {MEMORY_BOUND}: {verdict}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default="random", help="of ViT-Tiny")
    parser.add_argument("--data", help="a folder of real pictures in ImageNet's classes")
    parser.add_argument("--here", type=int, metavar="N", help="attack N batches in this process and print the bytes")
    options = parser.parse_args()
    if options.here is not None:
        print(peak_memory(options.here))
        return
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, weights: {options.weights}")
    model = open_model(MODEL, options.weights)
    images, labels = pictures(model, options.data)
    with attacking(model):
        time_a_step(model, images, labels)
        time_six_epsilons(model, images[:SIX_BATCH], labels[:SIX_BATCH])
    compare_memory()


if __name__ == "__main__":
    main()
