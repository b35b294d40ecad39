"""`--config FILE` and `--recipe NAME`: their values stand wherever the command line is silent."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

from vitscope.analyses.request import Request
from vitscope.cli.parsing import alike, named, parse
from vitscope.cli.results import show
from vitscope.errors import VitscopeError
from vitscope.outside import check_typed, import_remembered, reading
from vitscope.runs.config import load_yaml


class Configurable(Protocol):
    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Any: ...


@dataclass(frozen=True)
class FromFile:
    """What only the command line takes."""

    config: Annotated[str | None, named("FILE")] = None
    """YAML with the names of these options, or a run's config.yaml; what else is typed here wins"""
    trust: bool = False
    """import the code and fetch the weights that only a run folder or --config names; only what you trust"""


@dataclass(frozen=True)
class OnCluster:
    """Where a command runs."""

    cluster: Literal["local", "slurm"] = "local"
    """slurm: hand the command in as a job, wait for it, and print what it says; --out is seen by all nodes"""
    slurm: Mapping[str, Any] = field(default_factory=dict)
    """parameters of submitit's SlurmExecutor, such as partition=gpu time=600 nodes=2 tasks_per_node=4 gpus_per_node=4;
    several tasks share the run as under torchrun"""


R = TypeVar("R", bound=Request)
C = TypeVar("C", bound=Configurable)
Recipes = Callable[[str], Mapping[str, Any]]  # a recipe's name -> its options


def with_file(options: type[R], *more: type) -> type[R]:
    """The options of a request, where else they may come from, and `more` that only the command line takes."""
    return alike(options, FromFile, *more)


def carry_out(words: type[Request], command: str, arguments: Sequence[str], examples: str) -> None:
    """Do what was typed, here or on a cluster."""
    request = parse_with_config(words, command, arguments, examples)
    if isinstance(request, OnCluster) and request.cluster == "slurm":
        from vitscope.sweeps.command import run_on_slurm

        request.check()  # what is misspelt is said here, not in the log of a job
        print(run_on_slurm([command, *here(arguments)], request.out, request.slurm), end="")
        return
    if find_value(arguments, "--slurm") is not None:
        raise VitscopeError("--slurm says how a job runs: say --cluster slurm as well.")
    show(request.run(command=["vitscope", command, *arguments]))


def here(arguments: Sequence[str]) -> list[str]:
    """The words of a command without those about the cluster, for the job itself."""
    rest, skip = list[str](), ""
    for word in arguments:
        flag = word.partition("=")[0]
        if flag in ("--cluster", "--slurm"):
            skip = flag if "=" not in word or flag == "--slurm" else ""
        elif word.startswith("-") or not skip:
            skip = ""
            rest.append(word)
        elif skip == "--cluster":  # one word is its value
            skip = ""
    return [*rest, "--cluster", "local"]


def parse_with_config(
    options: type[C], command: str, arguments: Sequence[str], examples: str, recipes: Recipes | None = None
) -> C:
    """Like `parse`, with the values of the file or the recipe as defaults."""
    file = find_value(arguments, "--config")
    recipe = find_value(arguments, "--recipe") if recipes is not None else None
    if {"-h", "--help"} & set(arguments) or (file is None and recipe is None):
        return parse(options, command, arguments, examples)
    if recipes is not None and recipe is not None:
        if file is not None:
            raise VitscopeError("--recipe and --config both give all options: choose one of them.")
        return parse(options, command, arguments, examples, options.from_config(recipes(recipe)))
    config = load_yaml(Path(str(file)))
    if "trust" in config:
        raise VitscopeError(f"{file}: a file cannot ask to be trusted. Type --trust if you trust it.")
    if config.get("slurm"):
        check_typed("slurm", file, "goes to the cluster as it is, and may hold shell commands")
    reading(file)
    if problems := import_remembered(config, file):
        raise VitscopeError("\n".join(problems))
    try:
        default = options.from_config(config)
    except VitscopeError as error:
        raise type(error)(f"{file}: {error}") from error
    return parse(options, command, arguments, examples, default)


def find_value(arguments: Sequence[str], flag: str) -> str | None:
    """The word after a flag, or after `flag=`."""
    for word, following in zip(arguments, [*arguments[1:], None]):
        if word == flag:
            return following
        if word.startswith(flag + "="):
            return word.partition("=")[2]
    return None
