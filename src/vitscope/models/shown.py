"""A model as a notebook shows it: what it is, in a small table."""

from __future__ import annotations

from markupsafe import Markup

from vitscope.attention.description import describe_attention
from vitscope.models.model import Model
from vitscope.models.preprocessing import UNTOUCHED, Preprocess

GREY = "opacity:.7"


def facts(model: Model) -> dict[str, str]:
    """What a person asks of a model first, in words."""
    layout = model.layout
    weights = sum(p.numel() for p in model.module.parameters())
    converted = [
        f"{each['name']} in block{'s' if len(str(each.get('layers'))) > 1 else ''} {each.get('layers', 'all')}"
        for each in describe_attention(model.module)
    ]
    words = model.row.text and not model.row.inside
    found = {
        "family": model.family,
        "blocks": f"{layout.blocks} of {layout.heads} heads, {layout.head_dim} dimensions each",
        "residual stream": f"{layout.width} wide",
        "tokens": str(layout).partition("; ")[2],
        "pictures": _size(model.preprocess),
        "words" if words else "classes": f"{model.num_classes:,}" if model.num_classes else "none: it has no head",
        "attention": ", ".join(converted),  # of those that are converted; others are as they were built
        "parameters": f"{weights:,}",
        "lenses learnt": ", ".join(model.lenses),
        "class space": model.why_no_class_space() or "",
        "edited now": ", ".join(model.active_edits()),
    }
    return {name: text for name, text in found.items() if text}


def _size(preprocess: object) -> str:
    """What every picture is made into before it goes in: a small or grey model sees less than a person does."""
    if not isinstance(preprocess, Preprocess) or preprocess == UNTOUCHED:
        return ""
    channels, height, width = preprocess.input_size
    return f"{height} x {width}, " + {1: "grey", 3: "in colour"}.get(channels, f"{channels} channels")


def model_html(model: Model) -> str:
    rows = Markup("").join(
        Markup('<tr><td style="{};text-align:left">{}</td><td style="text-align:left">{}</td></tr>').format(
            GREY, name, text
        )
        for name, text in facts(model).items()
    )
    notes = Markup("").join(Markup('<p style="{}">{}</p>').format(GREY, note) for note in model.notes)
    return str(Markup("<div><b>{}</b><table>{}</table>{}</div>").format(model.name, rows, notes))
