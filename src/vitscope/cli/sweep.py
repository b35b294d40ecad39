"""`vitscope sweep`: the same training with varied options and several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, Literal

from vitscope.cli.configuration import parse_with_config
from vitscope.cli.parsing import named
from vitscope.cli.train import Words as TrainWords
from vitscope.errors import VitscopeError
from vitscope.outside import has_read
from vitscope.training.options import TrainOptions
from vitscope.training.recipes import recipe_options

EXAMPLES = """\
  vitscope sweep --recipe small --vary dropout=0.1,0.3,0.5 --seeds 10 --probe separation --out runs/dropout
  vitscope sweep --recipe small --vary optimizer=adamw,sgd,asgd --workers 2 --out runs/optimizers
  vitscope sweep --recipe small --vary embed_dim=32,64 --vary num_heads=4,8 --out runs/grid
  vitscope sweep --recipe quick --vary 'attention=softmax|rpc:layers=0,iterations=4' --out runs/attention
  vitscope sweep --recipe small --seeds 3 --cluster slurm --slurm partition=gpu gpus_per_node=1 --out runs/seeds
"""


@dataclass(frozen=True)
class Words(TrainWords):
    """Train with varied options and several seeds, average over the seeds, and write one report.

    Takes every option of `vitscope train`. The same command again goes on with what is missing; more values or seeds
    may be added. Runs lie in OUT/runs, their logs in OUT/logs.
    """

    vary: Annotated[tuple[str, ...], named("NAME=VALUE,VALUE")] = ()
    """an option of `train` or of the model and its values, or values separated by '|' if they hold commas; several
    make a grid"""
    seeds: int = 3
    """runs of each setting, with the seeds --seed, --seed + 1, ..."""
    workers: Annotated[int | None, named("N")] = None  # type: ignore[assignment]
    """runs at the same time; none: 1 on this machine, 64 on SLURM"""
    threads: Annotated[int | None, named("N")] = None
    """of each run; none: OMP_NUM_THREADS, else the cores of this machine divided between the workers, 1 on SLURM"""
    loaders: int = 0
    """processes that read images, in each run"""
    cluster: Literal["auto", "local", "slurm"] = "auto"
    """where to run; auto: SLURM where one answers, else this machine"""
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """parameters of submitit's SlurmExecutor, such as partition=gpu time=600 mem_gb=8"""

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changes: Any) -> Words:
        options = config.get("options")
        if isinstance(options, Mapping):  # those of a training, where `workers` read images
            renamed = {"loaders" if name == "workers" else name: value for name, value in options.items()}
            config = {**config, "options": renamed}
        return super().from_config(config, **changes)  # type: ignore[return-value]


def main(arguments: Sequence[str]) -> None:
    words = parse_with_config(
        Words, "sweep", arguments, EXAMPLES, lambda name: {"options": recipe_options(name).to_config()}
    )
    from vitscope.sweeps.plan import check_values, parse_vary

    given = {f.name: getattr(words, f.name) for f in fields(TrainOptions)}
    options = TrainOptions(**{**given, "workers": words.loaders})
    for name in ("workers", "threads"):
        value = getattr(words, name)
        if value is not None and value < 1:
            raise VitscopeError(f"{name}={value}: expected at least 1.")
    vary = parse_vary(words.vary)
    options.check()
    check_values(options, vary)
    if has_read():  # the runs are processes of their own, which know no file
        from vitscope.training.start import check_weights_at_hand

        check_weights_at_hand(options)
    from vitscope.cli.results import show
    from vitscope.sweeps import sweep
    from vitscope.sweeps.sweeping import failed_runs

    run = sweep(
        options,
        vary,
        seeds=words.seeds,
        workers=words.workers,
        threads=words.threads,
        cluster=words.cluster,
        slurm=words.slurm,
        command=["vitscope", "sweep", *arguments],
    )
    show([run])
    failed = failed_runs(run)
    if failed:
        raise VitscopeError("\n".join([f"{len(failed)} run(s) failed; the same command tries them again:", *failed]))
