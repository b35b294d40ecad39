"""Which works did a run use? Read off its configuration; the training that made its model counts, too."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from vitscope import __version__
from vitscope.attention.description import attention_names
from vitscope.errors import RunError
from vitscope.outside import import_remembered
from vitscope.papers import sources as s
from vitscope.registry import ANALYSES, ATTACKS, ATTENTIONS, DATASETS, Registry
from vitscope.report.sources import gather, parts_of
from vitscope.runs import Run

SELF = "vitscope"


@dataclass(frozen=True)
class Use:
    """Something with a name that a run used, and whom it rests on."""

    kind: str  # 'attack'
    name: str  # 'pgd'
    keys: tuple[str, ...] | None  # of works.bib; none is ours, None is not known
    entries: tuple[str, ...] = ()  # BibTeX that code of one's own brings along
    remark: str = ""


def works() -> dict[str, str]:
    """{key: its BibTeX entry}"""
    text = files("vitscope.papers").joinpath("works.bib").read_text("utf-8")
    return {m[1]: m[0] for m in re.finditer(r"^@\w+\{([^,]+),.*?^\}", text, re.MULTILINE | re.DOTALL)}


def own_entry() -> str:
    fields = {
        "author": "{The vitscope maintainers}",
        "title": "vitscope: look inside transformers",
        "version": __version__,
        "license": "Apache-2.0",
    }
    return f"@software{{{SELF},\n" + ",\n".join(f"  {key} = {{{value}}}" for key, value in fields.items()) + "\n}"


def bibliography(runs: Sequence[str | Path] | str | Path) -> str:
    """The BibTeX of what some runs used, and before it, as comments, what is cited for what."""
    found = list(dict.fromkeys(use for run in gather(runs).values() for use in uses(run)))
    known, comments, entries = works(), [], dict[str, str]()
    for use in found:
        name, own = f"{use.kind} {use.name}", [_key(entry) for entry in use.entries]
        keys = [*(use.keys or ()), *own]
        if use.keys is None and not own:
            comments.append(f"{name}: whom to cite is not known here; see where it comes from.")
        else:
            comments.append(f"{name}: {', '.join(keys) or 'vitscope itself'}.")
        comments += [f"{name}: {use.remark}"] if use.remark else []
        entries |= {key: known[key] for key in use.keys or ()} | dict(zip(own, use.entries))
    entries = {SELF: own_entry(), **{key: entries[key] for key in sorted(entries)}}
    head = "".join(f"% {line}\n" for line in dict.fromkeys(comments))
    return f"{head}% \\cite{{{','.join(entries)}}}\n\n" + "\n\n".join(entries.values()) + "\n"


def uses(run: Run) -> Iterator[Use]:
    """What a run used, and the training behind it."""
    parts = list(parts_of(run))
    model = run.config.get("model", {})
    place = Path(str(model.get("run_path", ""))) if isinstance(model, Mapping) and model.get("run_path") else None
    if place is not None and not any(part.kind == "train" for part in parts) and (place / "run.json").exists():
        try:
            parts.append(Run.open(place))
        except RunError as error:
            yield Use("training", str(model["run"]), None, remark=str(error))
    for part in parts:
        import_remembered(part.config, part.path)  # what is not trusted is not imported, and says nothing then
        yield from _of_config(part.config)


def _of_config(config: Mapping[str, Any]) -> Iterator[Use]:
    options = _mapping(config.get("options"))  # of a training
    model, data = _mapping(config.get("model")), _mapping(config.get("data"))
    if name := str(model.get("name") or options.get("model") or ""):
        keys = next((keys for pattern, keys in s.MODELS if re.match(pattern, name)), None)
        yield Use("model", name, keys, remark=s.UNSURE["separation"] if name == "small" else "")
    yield from _attentions(model.get("attention"))
    yield from _attentions(options.get("attention"))
    for part in (data, *(_mapping(data.get(key)) for key in ("train", "test", "clean"))):
        yield from _data(part)
    analyses = config.get("analyses")
    named = dict(analyses) if isinstance(analyses, Mapping) else {}
    named |= {str(name): {} for name in options.get("probe") or ()}
    for name, given in named.items():
        yield _named("analysis", name, s.ANALYSES, ANALYSES, s.UNSURE.get(name, ""))
        attacks = _mapping(given).get("attacks")
        for attack, how in attacks.items() if isinstance(attacks, Mapping) else ():
            yield _named("attack", str(attack), s.ATTACKS, ATTACKS)
            if _mapping(how).get("momentum"):
                yield Use("momentum of", str(attack), s.MOMENTUM)
        yield from _pairs(_mapping(given).get("pairs"))
    yield from (Use("set", str(name), s.SETS.get(str(name).upper())) for name in _mapping(data.get("ood")))
    yield from (Use("corruption", str(name), s.CORRUPTION) for name in data.get("corrupt") or ())
    if str(options.get("distillation", "none")) != "none":
        yield Use("distillation", str(options["distillation"]), ("touvron2021training",))
    if options.get("refine"):
        yield Use("lenses that were learnt, after", str(options["refine"]), s.REFINED + s.LINEAR)


def _attentions(described: Any) -> Iterator[Use]:
    """[{'name': 'rpc', ...}], or 'rpc:layers=0;package.module:Mine:layers=1'."""
    yield from (_named("attention", name, s.ATTENTIONS, ATTENTIONS) for name in attention_names(described))


def _data(data: Mapping[str, Any]) -> Iterator[Use]:
    source = str(data.get("source") or "")
    if source and DATASETS.normal(source) in DATASETS.names():
        yield _named("data", DATASETS.normal(source), s.DATASETS, DATASETS)
    elif source:
        yield Use("data", str(data.get("name") or source), None)


def _pairs(pairs: Any) -> Iterator[Use]:
    """'pgd@1/255' and 'corrupt:fog@3' use an attack and a corruption."""
    for word in [pairs] if isinstance(pairs, str) else pairs or ():
        name = str(word).partition("@")[0]
        if name in s.ATTACKS:
            yield Use("attack", name, s.ATTACKS[name])
        elif name.startswith("corrupt:"):
            yield Use("corruption", name.removeprefix("corrupt:"), s.CORRUPTION)


def _named(kind: str, name: str, table: Mapping[str, tuple[str, ...]], registry: Registry, remark: str = "") -> Use:
    if name in table:
        return Use(kind, name, table[name], remark=remark)
    known, thing = registry.loaded(name)  # what nobody trusts is not
    given = getattr(thing, "cites", ())
    return Use(kind, known, None, (given,) if isinstance(given, str) else tuple(given))


def _key(entry: str) -> str:
    found = re.match(r"\s*@\w+\s*\{\s*([^,\s]+)\s*,", entry)
    if found is None:
        raise RunError(f"`cites` holds no BibTeX entry: expected '@article{{key, ...}}', not {entry[:60]!r}.")
    return found[1]


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
