"""How quickly the explorer answers: real requests to a real server, vit_tiny_patch16_224, and Chromium for pointing.

    python benchmarks/explore.py [--weights FILE] [--repeats 15]

Bounds: a dropped picture within 1.8 forwards + 150 ms, an edit within 1.8 forwards + 100 ms, one forward more where a
patch comes from a picture that was not looked at before; one transfer of at most 2.5 MB; pointing within 30 ms without
a request; at 577 tokens and 12 heads a token's rows in at most 400 kB. Times are minima of interleaved repeats.
"""

from __future__ import annotations

import argparse
import io
import shutil
import statistics
from collections.abc import Callable
from itertools import count
from typing import Any

import httpx
import numpy as np
import torch
from PIL import Image

import vitscope
from timing import interleaved
from vitscope.explorer.session import Session
from vitscope.explorer.transfer import MOST, MOST_ROWS

POINT = """
const stage = document.querySelector(".stage"), box = stage.getBoundingClientRect(), times = [];
for (let i = 0; i < 60; i += 1) {
  const [x, y] = [((i * 37) % 100) / 100, ((i * 61) % 100) / 100];
  const at = {clientX: box.left + box.width * x, clientY: box.top + box.height * y};
  const begun = performance.now();
  stage.dispatchEvent(new PointerEvent("pointermove", {...at, bubbles: true}));
  document.body.getBoundingClientRect(); // styles and layout, too
  times.push(performance.now() - begun);
}
return times;
"""


def picture(seed: int) -> bytes:
    """Noise of a photograph's size as JPEG."""
    file = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 255, (60, 80, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((640, 480)).save(file, "JPEG")
    return file.getvalue()


def line(name: str, value: float, bound: float, unit: str, digits: int = 1) -> None:
    print(
        f"{name:<44} {value:>10.{digits}f} {unit:<3} bound {bound:.{digits}f}: {'kept' if value <= bound else 'MISSED'}"
    )


def answers(model: vitscope.Model, repeats: int) -> None:
    """Times of the server's answers beside the plain forward pass."""
    numbers, sizes = count(), []
    x = torch.randn(1, 3, 224, 224)
    with vitscope.explore(model) as explorer:
        base = explorer.url.split("/?")[0]
        with httpx.Client(base_url=base, headers={"origin": base}, trust_env=False, timeout=60) as http:
            http.get(explorer.url)

            def upload() -> str:
                return str(http.post("/api/upload", content=picture(next(numbers))).json()["hash"])

            def look(subject: str, *changes: dict[str, Any]) -> None:
                answer = http.post("/api/look", json={"subject": {"hash": subject}, "changes": list(changes)})
                assert answer.status_code == 200, answer.text
                sizes.append(len(answer.content))

            shown = upload()

            def plain() -> None:
                with torch.inference_mode():
                    model.module(x)

            def edit() -> None:  # another one each time: nothing is remembered
                n = next(numbers)
                changes = [{"kind": "head", "block": n % 12, "head": n % 3, "by": ("mean", "zero")[n // 12 % 2]}]
                look(shown, *changes, {"kind": "tokens", "block": 0, "tokens": [1 + n % 196]})

            waiting = [upload() for _ in range(repeats + 2)]
            contenders: dict[str, Callable[[], object]] = {
                "plain forward": plain,
                "a dropped picture": lambda: look(upload()),
                "an edit": edit,
                "a patch from a new picture": lambda: look(
                    shown, {"kind": "patch", "block": 3, "tokens": [5], "subject": {"hash": waiting.pop()}}
                ),
            }
            seconds = interleaved(contenders, repeats)
    best = {name: 1000 * min(times) for name, times in seconds.items()}
    forward = best["plain forward"]
    print(f"{'plain forward':<44} {forward:>10.1f} ms")
    line("a dropped picture", best["a dropped picture"], 1.8 * forward + 150, "ms")
    line("an edit", best["an edit"], 1.8 * forward + 100, "ms")
    line("a patch from a new picture", best["a patch from a new picture"], 2.8 * forward + 100, "ms")
    line("one transfer", max(sizes) / 1e6, MOST / 1e6, "MB", 2)


def pointing(model: vitscope.Model) -> None:
    """In a real Chromium: from the event to the new layout, and no request."""
    try:
        from selenium import webdriver
    except ImportError:
        print("pointing: selenium is not installed")
        return
    if not shutil.which("chromedriver"):
        print("pointing: no chromedriver")
        return
    options = webdriver.ChromeOptions()
    for flag in ("--headless=new", "--no-sandbox", "--window-size=1280,900"):
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    asked = "return performance.getEntriesByType('resource').length"
    try:
        with vitscope.explore(model) as explorer:
            name = explorer.session.store.take_upload(picture(0))
            browser.get(f"{explorer.url}&picture={name}")
            while not browser.execute_script("return document.body.dataset.started === 'true'"):
                pass
            before = browser.execute_script(asked)
            browser.execute_script(POINT)
            times = browser.execute_script(POINT)
            after = browser.execute_script(asked)
    finally:
        browser.quit()
    line("pointing, median", statistics.median(times), 30, "ms")
    line("requests while pointing", after - before, 0, "", 0)


def rows() -> None:
    """577 tokens and 12 heads."""
    model = vitscope.open_model("vit_tiny_patch16_224", "random", img_size=384, embed_dim=192, num_heads=12)
    session = Session([model])
    subject = {"hash": session.store.take_upload(picture(0))}
    asked = session.asked({"subject": subject, "token": 300})
    line("577 tokens, 12 heads: one transfer", len(session.look(asked, lambda: None)) / 1e6, MOST / 1e6, "MB", 2)
    line("577 tokens, 12 heads: a token's rows", len(session.rows(asked, lambda: None)) / 1e3, MOST_ROWS / 1e3, "kB", 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--weights", default="random", help="a file with weights of vit_tiny_patch16_224")
    parser.add_argument("--repeats", type=int, default=15)
    options = parser.parse_args()
    torch.manual_seed(0)
    model = vitscope.open_model("vit_tiny_patch16_224", options.weights)
    print(f"torch {torch.__version__}, {torch.get_num_threads()} threads, {options.repeats} repeats")
    answers(model, options.repeats)
    pointing(model)
    rows()


if __name__ == "__main__":
    main()
