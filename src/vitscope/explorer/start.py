"""What the page must know before it draws: models, data, attacks, limits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitscope.architectures.layout import Layout
from vitscope.architectures.text_layout import TextLayout
from vitscope.explorer.breaking import ATTACKS, MOST_EPSILON, MOST_STEPS
from vitscope.explorer.session import Session
from vitscope.explorer.subjects import MOST_BYTES, MOST_PIXELS
from vitscope.models import Model
from vitscope.report.gallery import colour_tables
from vitscope.robustness.corruptions.names import FAMILIES, SEVERITIES

PER_PAGE = 24  # items in the chooser


def start_facts(session: Session) -> dict[str, Any]:
    data = session.data
    return {
        "models": [
            model_facts(model) | {"name": name, "classes": session.classes(i)}
            for i, (name, model) in enumerate(zip(session.names, session.models))
        ],
        "text": session.text,
        "data": None if data is None or session.text else {"name": data.name, "split": data.split, "items": len(data)},
        "attacks": list(ATTACKS),
        "most_epsilon": MOST_EPSILON,
        "most_steps": MOST_STEPS,
        "corruptions": {family: list(names) for family, names in FAMILIES.items()},
        "severities": list(SEVERITIES),
        "most_bytes": MOST_BYTES,
        "most_pixels": MOST_PIXELS,
        "per_page": PER_PAGE,
        "notes": list(dict.fromkeys(session.notes)),
        "colours": colour_tables(),
    }


def model_facts(model: Model) -> dict[str, Any]:
    layout = model.layout
    prefix = (
        [] if model.row.text else [k for k, s in layout.spans.items() if k != "image" for _ in range(s.start, s.stop)]
    )
    return {
        "about": f"{layout.blocks} blocks of {layout.heads} heads, width {layout.width}; {_tokens(layout, prefix)}",
        "blocks": layout.blocks,
        "heads": layout.heads,
        "prefix": prefix,
        "grid": None if model.row.text else list(layout.grid),
        "num_classes": model.num_classes,
        "causal": bool(getattr(layout, "causal", False)),
    }


def _tokens(layout: Layout, prefix: Sequence[str]) -> str:
    """'14 x 14 patches and a class token', 'up to 512 tokens'."""
    if isinstance(layout, TextLayout):
        return f"up to {layout.tokens:,} tokens, each of which sees {'those before it' if layout.causal else 'all'}"
    counts = [(kind, prefix.count(kind)) for kind in dict.fromkeys(prefix)]
    others = [f"a {kind} token" if n == 1 else f"{n} {kind} tokens" for kind, n in counts]
    return " and ".join([f"{layout.grid[0]} x {layout.grid[1]} patches", *others])


def item_facts(session: Session, first: int) -> dict[str, Any]:
    """A page of the chooser."""
    data = session.data
    if data is None or session.text:
        return {"items": [], "of": 0}
    first = max(0, min(first, len(data) - 1))
    names = session.classes(0)
    listed = []
    for item in range(first, min(first + PER_PAGE, len(data))):
        label = session.label(0, item)
        listed.append({"item": item, "label": names[label] if label >= 0 else None})
    return {"items": listed, "of": len(data), "from": first}
