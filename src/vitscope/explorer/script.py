"""The view as a Python script: models, picture, attack, edits, and the numbers that the page shows."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import Any

from vitscope.analyses.saved_request import attention_text
from vitscope.explorer.breaking import SEED
from vitscope.explorer.changes import Change, in_python
from vitscope.explorer.session import Asked, Session
from vitscope.explorer.subjects import Origin, Step
from vitscope.models import Model
from vitscope.models.preprocess_words import words_of


def script(session: Session, views: Sequence[Asked]) -> str:
    """Python that opens the same models, makes the same input, and prints the same answers. views: one per model."""
    origins = [origin for asked in views for origin in _origins(session, asked)]
    steps = [step for origin in origins for step in origin.steps]
    uses = {
        "from vitscope.data.images import read_image": any(o.dropped for o in origins),
        "from vitscope.data.transforms import build_transform": not session.text,
        "from vitscope.robustness import perturb": any(step.is_attack for step in steps),
        "from vitscope.robustness.corruptions import corrupt, image_seed": any(not step.is_attack for step in steps),
    }
    head = [
        '"""What `vitscope explore` showed, as a script."""',
        "",
        *(["import contextlib", ""] if any(asked.changes for asked in views) else []),
    ]
    head += ["import torch", "", "import vitscope", *(line for line, used in uses.items() if used), ""]
    if any(origin.item is not None for origin in origins):
        head += [data_line(session)]
    for asked in views:
        several = ["", f"print({session.names[asked.model]!r})"] if len(views) > 1 else []
        head += [*several, *_view(session, asked)]
    return "\n".join(head) + "\n"


def _view(session: Session, asked: Asked) -> list[str]:
    """The lines of one model."""
    model = session.models[asked.model]
    body = [open_line(model), *_recipe(model), ""]
    body += _input(session, asked.model, session.subject(asked.model, asked.subject).origin, "x")
    edits = []
    for number, change in enumerate(asked.changes):
        if change.subject is not None:
            body += ["", *_source(session, asked.model, change, number)]
        body += ["", "", *in_python(change, number, model)]
        edits.append(f'("{change.point}", change_{number})')
    body += ["", *([""] if edits else []), *_run(edits)]
    return [*body, "", *_print(session, model, asked.chosen)]


def _origins(session: Session, asked: Asked) -> list[Origin]:
    named = [asked.subject, *(c.subject for c in asked.changes if c.subject is not None)]
    return [session.subject(asked.model, subject).origin for subject in named]


def open_line(model: Model) -> str:
    """How a model was opened, from what it records of itself."""
    source: dict[str, Any] = model.source
    name = source.get("run_path") or source.get("folder") or source["name"]
    weights, options = source.get("path"), dict(source.get("options") or {})
    text = str(source.get("weights", ""))
    words = [repr(str(name))]
    if weights:
        words.append(repr(str(weights)))
    elif text.startswith("random"):
        words.append('"random"')
        options["seed"] = int(text.rpartition(" ")[2])
    elif text == "of the given module":
        return "model = ...  # the module that you gave to vitscope.explore: vitscope.open_model(module)"
    if "run_path" in source:
        options = {}
    elif attention := source.get("attention"):
        options["attention"] = attention if isinstance(attention, str) else attention_text(attention)
    return f"model = vitscope.open_model({', '.join([*words, *(f'{k}={v!r}' for k, v in options.items())])})"


def _recipe(model: Model) -> list[str]:
    """Where pictures are not prepared as the model's own recipe says."""
    words = None if model.row.text else words_of(model.preprocess.source)
    if words is None:
        return []
    return [
        "from vitscope.models.preprocess_words import preprocess_in_words",
        "",
        f"model.preprocess = preprocess_in_words(model.preprocess, {words!r})",
    ]


def data_line(session: Session) -> str:
    data = session.data
    assert data is not None
    chosen = {k: v for k, v in data.selection.items() if k not in ("source", "subset") and v not in (None, "")}
    plain = {"share": 1.0, "seed": 0}
    options = {k: v for k, v in chosen.items() if v != plain.get(k)}
    words = [repr(str(data.selection.get("source", data.name))), repr(data.split)]
    return f"data = vitscope.load_data({', '.join([*words, *(f'{k}={v!r}' for k, v in options.items())])})"


def _input(session: Session, model: int, origin: Origin, name: str) -> list[str]:
    """Lines that make the input `name` (1, C, H, W) normalised, or the sentence."""
    if origin.text is not None:
        return [f"{name} = [{origin.text!r}]"]
    if origin.item is not None:
        lines = [f"{name} = build_transform(model.preprocess)(data[{origin.item}].image)[0][None]  # (1, C, H, W)"]
    else:
        lines = [
            "# the picture that you dropped: put it beside this script under this name, as Save does",
            f'picture = read_image("{picture_file(origin)}")',
            f"{name} = build_transform(model.preprocess)(picture)[0][None]  # (1, C, H, W)",
        ]
    if not origin.steps:
        return lines
    lines += [
        "mean, std = (torch.tensor(v)[:, None, None] for v in (model.preprocess.mean, model.preprocess.std))",
        f"pixels = ({name} * std + mean).mul(255).round() / 255  # in [0, 1]",
    ]
    for step in origin.steps:
        lines += _step(step, session, model)
    return [*lines, f"{name} = (pixels - mean) / std"]


def picture_file(origin: Origin) -> str:
    """What a script and "Save" call a picture of one's own."""
    return f"picture-{origin.dropped}.png"


def _step(step: Step, session: Session, model: int) -> list[str]:
    if not step.is_attack:
        return [
            f'seed = image_seed({SEED}, {step.index}, "{step.name}", {step.severity})',
            "levels = (pixels * 255).round().to(torch.uint8)",
            f'pixels = corrupt(levels, "{step.name}", {step.severity}, [seed]).float() / 255',
        ]
    if step.eps.startswith("0/"):
        return []
    attacked, lines = "model", []
    if step.model != model:
        attacked, lines = "attacked", [open_line(session.models[step.model]).replace("model =", "attacked =", 1)]
    more = f", steps={step.steps}" if step.steps else ""
    return [
        *lines,
        f"# away from class {step.label}; every pixel moves by {step.eps} at most",
        f'pixels = perturb({attacked}, pixels, torch.tensor([{step.label}]), "{step.name}", "{step.eps}", '
        f"indices=torch.tensor([{step.index}]), seed={SEED}{more})",
    ]


def _source(session: Session, model: int, change: Change, number: int) -> list[str]:
    assert change.subject is not None
    origin = session.subject(model, change.subject).origin
    return [
        *_input(session, model, origin, "other"),
        "with torch.no_grad():",
        f'    source_{number} = model.run_with_cache(other, "{change.point}")[1]["{change.point}"]',
    ]


def _run(edits: list[str]) -> list[str]:
    names = '["blocks.*.hook_resid_post"]'
    if not edits:
        return ["with torch.no_grad():", f"    logits, cache = model.run_with_cache(x, {names})"]
    return textwrap.dedent(f"""\
        with torch.no_grad(), contextlib.ExitStack() as changed:
            for point, change in [{", ".join(edits)}]:
                changed.enter_context(model.edits({{point: change}}))
            logits, cache = model.run_with_cache(x, {names})""").splitlines()


def _print(session: Session, model: Model, chosen: int | None) -> list[str]:
    answer = "logits[0, -1]" if session.text else "logits[0]"
    last = model.layout.blocks - 1
    lines = [
        f"probabilities = {answer}.double().softmax(-1)",
        "for number in probabilities.topk(min(5, len(probabilities))).indices.tolist():",
        '    print(f"class {number}: {probabilities[number]:.6f}")',
    ]
    if model.why_no_class_space() is None:
        which = "probabilities.argmax()" if chosen is None else str(chosen)
        lines += [
            f'readings = model.to_class_space(cache["blocks.{last}.hook_resid_post"][0])  # (tokens, classes)',
            f"chosen = int({which})",
            'print(f"logit of class {chosen} at the first token: {readings[0, chosen]:.6f}")',
        ]
    return lines
