"""A real SLURM on one node: start it, run a sweep, an analysis and an attack through it, compare the tables with those
of this machine, stop it.

    sudo python tests/slurm/run.py        # Debian: apt-get install slurm-wlm

Not part of `make test`: it needs root, and the daemons munged, slurmctld and slurmd. What it starts it also stops;
everything it writes lies in a temporary folder. It refuses to run beside a SLURM that is already there.
"""

from __future__ import annotations

import argparse
import filecmp
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NEEDED = ("munged", "slurmctld", "slurmd", "sbatch", "sinfo", "squeue")
CONFIGURATION = """\
ClusterName=vitscope
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerType=sched/backfill
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
NodeName={host} NodeAddr=127.0.0.1 CPUs={cores} State=UNKNOWN
PartitionName=main Nodes={host} Default=YES MaxTime=INFINITE State=UP
"""
SWEEP = [
    "--recipe", "quick", "--share", "0.05", "--epochs", "1", "--probe-images", "60", "--probe-splits", "test",
    "--model-options", "depth=3", "embed_dim=16", "num_heads=2", "patch_size=14", "--vary", "smoothing=0,0.1",
    "--seeds", "1", "--workers", "2", "--threads", "1", "--no-progress", "--probe", "separation", "attention",
]  # fmt: skip
LOOKS = {  # a command, and the tables that it has to give; through SLURM with two tasks that share the run
    "analyze": (["--only", "accuracy,attention", "--images", "60"], ("accuracy", "attention", "predictions")),
    "attack": (["--attacks", "fgsm,pgd", "--eps", "8/255", "--steps", "3", "--images", "40"], ("attack",)),
}
TABLES = ("sweep_runs", "sweep_summary", "sweep_profile", "sweep_training", "sweep_probe_attention")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keep", action="store_true", help="leave the temporary folder for a look")
    keep = parser.parse_args().keep
    missing = [name for name in NEEDED if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        sys.exit(f"Needs root and {', '.join(missing) or 'nothing else'} (Debian: apt-get install slurm-wlm).")
    folder = Path(tempfile.mkdtemp(prefix="vitscope-slurm-"))
    try:
        with slurm(folder) as environment:
            sweep(folder, "slurm", environment)
            print((folder / "sweep-slurm" / "tables" / "sweep_summary.csv").read_text(), end="")
            for command in LOOKS:
                look(folder, command, "slurm", environment)
        sweep(folder, "local", dict(os.environ))
        different = [
            name for name in TABLES
            if not filecmp.cmp(*(folder / f"sweep-{c}/tables/{name}.csv" for c in ("slurm", "local")), shallow=False)
        ]  # fmt: skip
        if different:
            sys.exit(f"These tables differ: {', '.join(different)}; see {folder}")
        print(f"SLURM and this machine give the same {', '.join(TABLES)}, bit for bit.")
        for command, (_, tables) in LOOKS.items():
            look(folder, command, "local", dict(os.environ))
            for name in tables:
                compare(*(folder / f"{command}-{c}/tables/{name}.csv" for c in ("slurm", "local")))
            print(f"{command}: two tasks of SLURM and one process here give the same {', '.join(tables)}.")
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)


def sweep(folder: Path, cluster: str, environment: dict[str, str]) -> None:
    words = [*SWEEP, "--cluster", "auto" if cluster == "slurm" else "local", "--out", str(folder / f"sweep-{cluster}")]
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "vitscope", "sweep", *words], env=environment, check=True, timeout=1800)
    logs = list((folder / f"sweep-{cluster}" / "logs").rglob("*.sh"))
    assert bool(logs) == (cluster == "slurm"), "submission scripts are there exactly if SLURM was used"
    print(f"{cluster}: {time.monotonic() - started:.0f} s")


def look(folder: Path, command: str, cluster: str, environment: dict[str, str]) -> None:
    """`vitscope analyze` or `attack` on the first model of the sweep."""
    model = min((folder / "sweep-slurm" / "runs").iterdir())
    words = [command, str(model), "--data", "mnist5k", *LOOKS[command][0], "--batch-size", "10", "--no-progress"]
    words += ["--cluster", cluster, "--out", str(folder / f"{command}-{cluster}")]
    words += ["--slurm", "tasks_per_node=2", "time=30"] if cluster == "slurm" else []
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", "vitscope", *words],
        env=environment,
        check=True,
        timeout=900,
        text=True,
        stdout=subprocess.PIPE,
    )
    assert "Report:" in done.stdout, f"the command says what the job said: {done.stdout}"
    made = json.loads((folder / f"{command}-{cluster}" / "environment.json").read_text())
    assert made["world_size"] == (2 if cluster == "slurm" else 1), "so many tasks shared the run"
    print(f"{command}, {cluster}: {time.monotonic() - started:.0f} s")


def compare(one: Path, other: Path) -> None:
    """The same rows; numbers to the last digits, which the order of a sum decides."""
    import numpy as np
    import pandas as pd

    tables = [pd.read_csv(path) for path in (one, other)]
    pd.testing.assert_frame_equal(*tables, rtol=1e-9, atol=1e-12)
    worst = max(np.abs(tables[0][c] - tables[1][c]).max() for c in tables[0].select_dtypes("number"))
    print(f"  {one.stem}: largest difference {worst:.1e}")


@contextmanager
def slurm(folder: Path) -> Iterator[dict[str, str]]:
    """munged, slurmctld and slurmd with a configuration of their own -> the environment that finds them."""
    for name in ("state", "spool"):
        (folder / name).mkdir()
    folder.chmod(0o755)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(folder=folder, host=host, cores=os.cpu_count()))
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    environment = {**os.environ, "SLURM_CONF": str(folder / "slurm.conf")}
    commands = [
        ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
         f"--pid-file={folder}/munged.pid", f"--seed-file={folder}/munged.seed", f"--log-file={folder}/munged.log"],
        ["slurmctld", "-D", "-i"],
        ["slurmd", "-D", "-N", host],
    ]  # fmt: skip
    daemons: list[subprocess.Popen[bytes]] = []
    try:
        for command in commands:
            with open(folder / f"{command[0]}.out", "wb") as out:
                daemons.append(subprocess.Popen(command, env=environment, stdout=out, stderr=subprocess.STDOUT))
            time.sleep(2)
        wait_until_idle(folder, environment, daemons)
        yield environment
    finally:
        subprocess.run(["scancel", "--user=root"], env=environment, timeout=60)  # jobs would outlive the daemons
        time.sleep(1)
        for daemon in reversed(daemons):
            daemon.terminate()
            try:
                daemon.wait(timeout=20)
            except subprocess.TimeoutExpired:
                daemon.kill()


def wait_until_idle(folder: Path, environment: dict[str, str], daemons: list[subprocess.Popen[bytes]]) -> None:
    for _ in range(60):
        if any(daemon.poll() is not None for daemon in daemons):
            break
        states = subprocess.run(["sinfo", "-h", "-o", "%t"], env=environment, capture_output=True, text=True).stdout
        if states.strip() in ("idle", "mix"):
            return
        time.sleep(1)
    logs = "\n".join(f"{p.name}: {p.read_text(errors='replace')[-800:]}" for p in sorted(folder.glob("*.[lo][ou][gt]")))
    raise SystemExit(f"SLURM did not come up.\n{logs}")


if __name__ == "__main__":
    main()
