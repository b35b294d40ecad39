"""How quick is an answer? Whole processes beside `python -c "import torch, timm"`, which no analysis can do without.

    python benchmarks/start.py [--weights FILE] [--data FOLDER] [--repeats 9]

Answers that need no PyTorch (help, the list of models, a mistake in a name or path) shall cost at most 0.3 of it. A
report shall cost 0.5 beside the drawing: the drawing is measured in this process, where everything is imported. An
analysis of 25 images shall cost 1.6 beside its forward pass and eigenvalues, which are measured here, too.
The report is that of an attack like the demo's: noise, FGSM and PGD of 10 steps at four budgets on 200 digits, for two
small ViTs (softmax and RPC, two epochs). Run it alone.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from kpca import IMAGES, captured, load
from timing import interleaved, report
from vitscope.analyses.kpca.gram import centred_gram
from vitscope.analyses.kpca.threads import thread_pool
from vitscope.data import load_data
from vitscope.demonstration import ATTACKED, ATTACKS, DATA, MODELS
from vitscope.models import Model, open_model
from vitscope.report import build_report
from vitscope.robustness import attack
from vitscope.training import recipe_options, train

BASE = "import torch, timm"
TINY = "vit_tiny_patch16_224"
ANSWERS = {
    "--help": ["--help"],
    "models tiny": ["models", "tiny"],
    "models": ["models"],
    "mistaken option": ["analyze", TINY, "--data", DATA, "--imges", "25"],
    "mistaken analysis": ["analyze", TINY, "--data", DATA, "--only", "attnetion"],
    "mistaken attack": ["attack", TINY, "--data", DATA, "--attacks", "pdg"],
    "mistaken attention": ["train", "--recipe", "quick", "--attention", "rcp"],
    "mistaken path": ["analyze", TINY, "--data", "path/to/imgenet"],
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--weights", default="random", help="safetensors of vit_tiny_patch16_224; none: random")
    parser.add_argument("--data", help="an ImageNet-style folder; none: digits, enlarged")
    parser.add_argument("--repeats", type=int, default=9)
    given = parser.parse_args()
    base = {BASE: lambda: python("-c", BASE)}
    answers = {name: command(words) for name, words in ANSWERS.items()}
    report(interleaved(base | answers, given.repeats, warmup=1), BASE, dict.fromkeys(answers, 0.3))

    with tempfile.TemporaryDirectory() as folder:
        attacks = attacked(Path(folder))
        analysis = ["analyze", TINY, "--weights", given.weights, "--data", given.data or DATA, "--images", str(IMAGES)]
        analysis += ["--only", "kpca.spectrum", "--overwrite", "--no-progress", "--out", f"{folder}/spectrum"]
        analysis += ["--model-options", "num_classes=10"] if given.weights == "random" and not given.data else []
        slow = {
            "mistaken model": command(["analyze", "vit_tiny_patch61_224", "--data", DATA]),
            "report": command(["report", str(attacks)]),
            "analyze": command(analysis),
        }
        seconds = interleaved(base | slow, max(5, given.repeats // 2), warmup=1)
        drawing = quickest(lambda: build_report(attacks))
    floor = quickest(forward_and_eigenvalues(open_model(TINY, given.weights), given.data))
    seconds["report - drawing"] = [s - drawing for s in seconds["report"]]
    seconds["analyze - forward, eigvalsh"] = [s - floor for s in seconds["analyze"]]
    print(f"drawing: {drawing:.2f} s, forward and eigvalsh of {IMAGES} images: {floor:.2f} s")
    report(seconds, BASE, {"report - drawing": 0.5, "analyze - forward, eigvalsh": 1.6})


def python(*words: str) -> None:
    """A process of its own; a mistake (2) is an answer, a crash (1) is none."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    if done.returncode not in (0, 2):
        raise RuntimeError(done.stderr)


def command(words: Sequence[str]) -> Callable[[], None]:
    return lambda: python("-m", "vitscope", *words)


def attacked(folder: Path) -> Path:
    """Run folders like those of the demo's attacks."""
    short = {"epochs": 2, "progress": False}
    trained = [
        train(recipe_options("quick", out=folder / name, label=name, attention=attention, **short))
        for name, attention in MODELS.items()
    ]
    digits, models = load_data(DATA, "test", images=ATTACKED), [open_model(run.path) for run in trained]
    attack(models, digits, out=folder / "attacks", report=False, progress=False, **ATTACKS)
    return folder / "attacks"


def forward_and_eigenvalues(model: Model, folder: str | None) -> Callable[[], None]:
    """What `kpca.spectrum` cannot do without: the pass, and the eigenvalues of every head."""
    batch = load(model, folder)
    _, k, _ = captured(model, batch.images)
    matrices = torch.cat([centred_gram(x).matrix.flatten(0, 1) for x in k])

    @torch.no_grad()
    def run() -> None:
        model(batch.images)
        list(thread_pool(torch.get_num_threads()).map(torch.linalg.eigvalsh, matrices.split(25)))

    return run


def quickest(run: Callable[[], object], repeats: int = 3) -> float:
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
