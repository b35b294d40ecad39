"""A slider over frames: epochs, blocks, strengths of an attack. Works with mouse, touch and arrow keys."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from vitscope.errors import VitscopeError


def slider(key: str, name: str, labels: Sequence[object], frames: Sequence[str], *, start: int = -1) -> Markup:
    """One frame at a time, picked by a slider. Put the result into `Panel.html`.

    `name` is what the slider runs over ('epoch'), `labels` its values, one per frame. `frames` are inline SVGs (from
    `svg.inline_svg`) or other markup; a frame that is a plain `str` is escaped. `start` is the frame shown first.
    """
    if not frames or len(labels) != len(frames):
        raise VitscopeError(f"A slider needs one label per frame: {len(labels)} labels, {len(frames)} frames.")
    first = range(len(frames))[start]
    parts = [
        Markup('<div class="frame" data-label="{}"{}>{}</div>').format(
            label, Markup("" if i == first else " hidden"), frame if isinstance(frame, Markup) else escape(frame)
        )
        for i, (label, frame) in enumerate(zip(labels, frames))
    ]
    return Markup(
        '<div class="slider" id="slider-{key}" role="group" aria-label="{name}">'
        '<div class="slider-bar">'
        '<button type="button" class="step" data-step="-1" aria-label="previous {name}">‹</button>'
        '<input type="range" min="0" max="{last}" value="{first}" aria-label="{name}" aria-valuetext="{label}">'
        '<button type="button" class="step" data-step="1" aria-label="next {name}">›</button>'
        '<output>{name} <b>{label}</b></output></div>'
        '<div class="frames">{frames}</div></div>'
    ).format(
        key=key, name=name, last=len(frames) - 1, first=first, label=labels[first], frames=Markup("").join(parts)
    )  # fmt: skip
