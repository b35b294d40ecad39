"""Real processes: killed with SIGKILL and started again, and two of them under torchrun."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import launch
from vitscope.analyses.save import open_saved
from vitscope.runs import Run
from vitscope.runs.tables import read_csv

# What a user's own script could be. `Grim` kills its own process with SIGKILL where the environment says so: inside
# the forward pass, or while the state is being saved (files are then longer than the last state says).
# With a list of jobs it forks a process for each, so that several are tried at the cost of one import of torch.
SCRIPT = """
import json, os, signal, sys
import pandas as pd, torch
from vitscope.analyses import Analysis, analyze, list_analyses, register_analysis, zeros
from vitscope.data import load_data
from vitscope.models import open_model

@register_analysis("grim")
class Grim(Analysis):
    def needs(self, model):
        return ["blocks.1.hook_resid_mid"]
    def start(self, model):
        self.sums = {"total": zeros(model.layout.width)}
    def update(self, block, points, batch):
        (value,) = points.values()
        self.add("total", value.double().sum((0, 1)))
        self.number = batch.number
        with open(os.environ["SEEN"], "a") as file:
            file.write(f"{self.setting.rank} {self.setting.world} {batch.number} {len(batch)}\\n")
        self.reap("forward")
    def flush(self):
        self.reap("save")
    def reap(self, here):
        if os.environ.get("GRIM") == f"{here}:{self.number}":
            os.kill(os.getpid(), signal.SIGKILL)
    def tables(self):
        return {"grim": pd.DataFrame({"channel": range(len(self.sums["total"])), "total": self.sums["total"].numpy()})}

list_analyses()  # here, so that forked processes need not import them again
small = dict(img_size=28, patch_size=7, in_chans=1, embed_dim=32, depth=2, num_heads=2, num_classes=10)
model = open_model("vit_tiny_patch16_224", "random", **small)
data = load_data("mnist5k", "train", images=1001, masks=False)

def look(out):
    save = {"points": ["blocks.1.hook_resid_post"], "shard_mb": 1}
    analyses = {"accuracy": {}, "attention": {}, "grim": {}, "save": save}
    analyze(model, data, analyses, out, batch_size=64, save_every=0, progress=False, report=False)

def fork(environment):
    child = os.fork()
    if child:
        return child
    os.environ.update(environment)
    try:
        look(environment["OUT"])
    except BaseException as error:
        print(error, file=sys.stderr, flush=True)
        os._exit(1)
    os._exit(0)

if len(sys.argv) > 1:
    for job in json.loads(sys.argv[1]):
        children = [fork(environment) for environment in job]
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
else:
    look(os.environ["OUT"])
"""


def job(out, grim="", world=1):
    """One call of analyze, as the environment of each of its processes."""
    one = {"OUT": str(out), "SEEN": f"{out}.seen", "GRIM": grim}
    if world == 1:
        return [one]
    common = one | {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launch.free_port()}
    return [common | {"RANK": str(rank)} for rank in range(world)]


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("script") / "look.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def attempts(script, tmp_path_factory):
    """(folder of the runs, exit codes of every process of every attempt)"""
    folder = tmp_path_factory.mktemp("runs")
    jobs = {
        "undisturbed": job(folder / "undisturbed"),
        "killed in the forward pass": job(folder / "killed", "forward:5"),
        "killed while saving": job(folder / "killed", "save:9"),
        "third attempt": job(folder / "killed"),
        "pair, one killed": job(folder / "pair", "forward:7", world=2),
        "pair, continued by one": job(folder / "pair"),
        "pair, again": job(folder / "pair", world=2),
    }
    result = launch.run(script, json.dumps(list(jobs.values())))
    assert result.returncode == 0, result.stderr
    codes = [json.loads(line) for line in result.stdout.splitlines()]
    return folder, dict(zip(jobs, codes)), result.stderr


def call(command, **environment):
    # one thread: torchrun sets it, too, and the number of threads may change the last bit of a sum
    environment = os.environ | environment | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def seen(out):
    """(rank, world, batch, images) of every batch that was begun."""
    return [tuple(map(int, line.split())) for line in Path(f"{out}.seen").read_text().splitlines()]


def files(out):
    return {p.relative_to(out): p.read_bytes() for p in sorted(out.rglob("*")) if p.suffix in (".csv", ".npy", ".png")}


def assert_same_results(out, reference):
    run = Run.open(out)
    assert run.status == "finished"
    assert run.summary["accuracy.top1"]["n"] == 1001
    names = [path.stem for path in sorted((reference / "tables").glob("*.csv"))]
    assert {"accuracy", "attention", "grim", "predictions", "maps_attention"} <= set(names)
    for name in names:
        if name != "saved":  # says which process wrote what
            expected = read_csv(reference / "tables" / f"{name}.csv")
            pd.testing.assert_frame_equal(run.table(name), expected, rtol=1e-6, atol=1e-6)
    one, two = (open_saved(folder)["blocks.1.hook_resid_post"] for folder in (reference, out))
    assert two.shape == one.shape == (1001, 17, 32)
    assert np.allclose(two[range(1001)], one[range(1001)], atol=1e-6)


def test_a_run_killed_twice_gives_the_files_of_an_undisturbed_one(attempts):
    folder, codes, errors = attempts
    assert codes["undisturbed"] == [0], errors
    assert codes["killed in the forward pass"] == codes["killed while saving"] == [-signal.SIGKILL]
    assert codes["third attempt"] == [0], errors
    # batch 5 was begun twice, batch 9 counted twice: nothing else was done again
    numbers = [number for _, _, number, _ in seen(folder / "killed")]
    assert numbers == [0, 1, 2, 3, 4, 5, 5, 6, 7, 8, 9, 9, 10, 11, 12, 13, 14, 15]
    killed, undisturbed = files(folder / "killed"), files(folder / "undisturbed")
    assert {"accuracy.csv", "predictions.csv", "saved.csv", "r0-00001.npy"} <= {path.name for path in killed}
    assert killed == undisturbed


def test_a_killed_pair_of_processes_goes_on_as_a_pair_only(attempts):
    folder, codes, errors = attempts
    assert codes["pair, one killed"][1] == -signal.SIGKILL
    assert codes["pair, one killed"][0] != 0, "the other process must notice and not report success"
    assert codes["pair, continued by one"] == [1]
    assert "begun by 2 process(es) and cannot go on with 1" in errors
    assert codes["pair, again"] == [0, 0], errors
    assert [n for rank, _, n, _ in seen(folder / "pair") if rank == 1] == [1, 3, 5, 7, 7, 9, 11, 13, 15]
    assert_same_results(folder / "pair", folder / "undisturbed")


def test_torchrun_shares_1001_images_between_two_processes(script, attempts, tmp_path):
    folder, _, _ = attempts
    out = tmp_path / "run"
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    result = call([*launcher, str(script)], OUT=str(out), SEEN=f"{out}.seen")
    assert result.returncode == 0, result.stderr
    work = seen(out)
    assert {(rank, world) for rank, world, _, _ in work} == {(0, 2), (1, 2)}
    assert all(number % 2 == rank for rank, _, number, _ in work)
    assert sum(n for _, _, _, n in work) == 1001
    assert Run.open(out).timing["analyze"]["processes"] == 2
    assert_same_results(out, folder / "undisturbed")
