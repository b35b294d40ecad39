"""What the tests of the page do with a browser: wait, point, click, read."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import torch

from vitscope.data.transforms import build_transform

CANVAS = "return [...document.querySelectorAll(arguments[0])].map(c => [...c.values])"


def wait(browser: Any, condition: str, seconds: float = 20) -> None:
    until = time.monotonic() + seconds
    while not browser.execute_script(f"return {condition}"):
        assert time.monotonic() < until, (condition, text(browser, "#message"), errors(browser))
        time.sleep(0.02)


def errors(browser: Any) -> list[str]:
    found = [e["message"] for e in browser.get_log("browser") if e["level"] in ("SEVERE", "WARNING")]
    return [message for message in found if "willReadFrequently" not in message]


def text(browser: Any, selector: str) -> str:
    return browser.execute_script("return document.querySelector(arguments[0]).textContent", selector)


def then(browser: Any, action: Callable[[], Any]) -> None:
    """Do something that asks the server, and wait for its answer."""
    ready = browser.execute_script("return Number(document.body.dataset.ready || 0)")
    action()
    wait(browser, f"Number(document.body.dataset.ready || 0) > {ready}")


def click(browser: Any, selector: str) -> None:
    browser.execute_script("document.querySelector(arguments[0]).click()", selector)


def choose(browser: Any, selector: str, value: Any) -> None:
    script = (
        "const e = document.querySelector(arguments[0]); e.value = arguments[1];"
        "for (const kind of ['input', 'change']) e.dispatchEvent(new Event(kind, {bubbles: true}))"
    )
    browser.execute_script(script, selector, str(value))


def move(
    browser: Any, selector: str, x: float, y: float, kind: str = "mouseMoved", number: int = 0, **more: Any
) -> None:
    """A real pointer, to a share of an element."""
    box = browser.execute_script(
        "const e = document.querySelectorAll(arguments[0])[arguments[1]]; e.scrollIntoView({block: 'center'});"
        "const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]",
        selector,
        number,
    )
    where = {"x": box[0] + x * box[2], "y": box[1] + y * box[3]}
    browser.execute_cdp_cmd("Input.dispatchMouseEvent", {"type": kind, **where, **more})


def press(browser: Any, selector: str, x: float, y: float) -> None:
    for kind in ("mousePressed", "mouseReleased"):
        move(browser, selector, x, y, kind, button="left", clickCount=1)


def screen(browser: Any, width: int, scheme: str = "light") -> None:
    features = [
        {"name": "prefers-color-scheme", "value": scheme},
        {"name": "prefers-reduced-motion", "value": "reduce"},
    ]
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "", "features": features})
    metrics = {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)


def place(token: int, side: int = 4) -> tuple[float, float]:
    return ((token - 1) % side + 0.5) / side, ((token - 1) // side + 0.5) / side


def points(model: Any, data: Any, item: int) -> tuple[Any, Any]:
    with torch.no_grad():
        return model.run_with_cache(build_transform(model.preprocess)(data[item].image)[0][None])


def requests(browser: Any) -> list[str]:
    entries = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    return [m["params"]["request"]["url"] for m in entries if m["method"] == "Network.requestWillBeSent"]


def text_of_class(page: Any) -> str:
    return page.execute_script("return document.querySelector('#class-0').value")


def short(value: float) -> str:
    """Three significant digits, as the page prints them."""
    return f"{float(f'{value:.3g}'):g}".replace("-", "−")
