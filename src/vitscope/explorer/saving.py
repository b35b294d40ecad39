"""Save: the view as a run folder, with its tables, its script and its report."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from PIL import Image
from torch import Tensor

from vitscope import __version__
from vitscope.errors import VitscopeError
from vitscope.explorer.changes import in_words
from vitscope.explorer.looking import Pass, view
from vitscope.explorer.script import picture_file, script
from vitscope.explorer.session import Asked, Session, step_in_words
from vitscope.explorer.subjects import Origin, Subject
from vitscope.report import build_report
from vitscope.runs import Run
from vitscope.runs.files import atomic_write

MAPS = {"logit": "class logit", "identifiability": "identifiability", "norm": "norm"}


def save(session: Session, asked: Asked, out: str | None = None) -> Path:
    """Write a run folder below `out` and return it."""
    model = session.models[asked.model]
    subject, seen = session.passed(asked, lambda: None)
    # the same input without changes; of an attacked picture the clean one is an item of its own
    _, before = session.passed(Asked(asked.model, asked.subject, None, ()), lambda: None)
    head, arrays = view(model, seen, subject, asked.chosen)
    code = script(session, [asked])
    folder = _free_folder(Path(out or "runs/explore"), model.name)
    config = {
        "label": model.name,
        "model": model.source,
        "data": _where_from(session, subject.origin),
        "view": {
            "subject": {k: v for k, v in vars(subject.origin).items() if k != "steps" and v is not None},
            "steps": [vars(step) for step in subject.origin.steps],
            "done": [step_in_words(step) for step in subject.origin.steps],
            "changes": [in_words(change, model) for change in asked.changes],
            "class": head["chosen"],
        },
        "vitscope": __version__,
    }
    with Run.create(folder, config, kind="explore") as run:
        run.write_table("explored", _answers(session, asked, seen, before, head["chosen"]))
        if seen.readout is not None:
            run.write_table("explored_blocks", _blocks(session, asked, seen, before, head["chosen"]))
        if subject.pixels is not None:
            _write_picture(run.images_dir / "0.png", subject.pixels)
            run.write_table("images", pd.DataFrame([_image_row(session, asked, subject, head)]))
            for key, name in MAPS.items():
                if key in arrays:
                    run.write_table(f"maps_{key}", map_table(arrays[key][1:], name, model))
            if "first" in arrays:
                run.write_table("maps_attention", map_table(arrays["first"], "attention of the first token", model))
        if (named := asked.subject.get("hash")) and (image := session.store.get(named).image) is not None:
            image.save(folder / picture_file(subject.origin))
        atomic_write(folder / "script.py", code.encode())
        run.finish()
    build_report([Run.open(folder)])
    return folder


def _where_from(session: Session, origin: Origin) -> dict[str, Any]:
    """What the headline says of the input."""
    if origin.item is None:
        return {"name": "a sentence" if origin.text is not None else "a picture of your own", "n": 1}
    assert session.data is not None
    return {"name": f"{session.data.name}, item {origin.item}", "split": session.data.split, "n": 1}


def _free_folder(base: Path, name: str) -> Path:
    plain = "".join(c if c.isalnum() or c in "-_." else "-" for c in name).strip(".-") or "model"
    for number in range(1, 10_000):
        folder = base / f"{plain}-{number}"
        if not folder.exists():
            return folder
    raise VitscopeError(f"{base} is full: give another folder, --out DIR.")


def _answers(session: Session, asked: Asked, seen: Pass, before: Pass, chosen: int) -> pd.DataFrame:
    """The likeliest classes and the chosen one, before and after the changes."""
    new, old = (p.logits.double().softmax(-1) for p in (seen, before))
    k = min(5, len(new))
    shown = list(dict.fromkeys([*new.topk(k).indices.tolist(), *old.topk(k).indices.tolist(), chosen]))
    rows = [
        {"class": c, "class_name": session.class_name(asked.model, c), "before": float(old[c]), "after": float(new[c])}
        for c in shown
    ]
    return pd.DataFrame(rows)


def _blocks(session: Session, asked: Asked, seen: Pass, before: Pass, chosen: int) -> pd.DataFrame:
    """What every block would answer, before and after."""
    assert seen.readout is not None
    assert before.readout is not None
    rows = []
    for block in range(len(seen.readout) - 1):
        new, old = (p[block + 1].double().softmax(-1) for p in (seen.readout, before.readout))
        told: dict[str, Any] = {"block": block}
        for name, p in (("before", old), ("after", new)):
            told |= {f"answer_{name}": session.class_name(asked.model, int(p.argmax())), f"p_{name}": float(p[chosen])}
        rows.append(told)
    return pd.DataFrame(rows)


def _image_row(session: Session, asked: Asked, subject: Subject, head: dict[str, Any]) -> dict[str, Any]:
    names = session.classes(asked.model)
    return {
        "image": 0,
        "path": session.name_of(asked.subject),
        "label": subject.label,
        "class_name": names[subject.label] if subject.label >= 0 else "",
        "prediction": head["answer"],
        "predicted_name": names[head["answer"]],
    }


def map_table(values: Tensor, name: str, model: Any) -> pd.DataFrame:
    """(L, N) of all tokens -> rows of the gallery's maps, of image tokens."""
    cells = values[:, model.layout.image].float().cpu()  # (L, T)
    block, row, column = np.indices((len(cells), *model.layout.grid)).reshape(3, -1)
    place = {"image": 0, "map": name, "block": block, "row": row, "col": column}
    return pd.DataFrame(place | {"value": cells.flatten().numpy()})


def _write_picture(path: Path, pixels: Tensor) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    levels = pixels.mul(255).round().to(torch.uint8).permute(1, 2, 0).cpu().numpy()
    file = io.BytesIO()
    Image.fromarray(levels.squeeze(-1) if levels.shape[-1] == 1 else levels).save(file, "PNG")
    atomic_write(path, file.getvalue())
