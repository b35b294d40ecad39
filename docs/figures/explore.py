"""The pictures of docs/explore.md: the explorer on what `vitscope demo` trained, as a browser shows it.

    vitscope demo && python docs/figures/explore.py runs/demo/digits-vit

Needs chromium and chromedriver. Pictures of handwritten digits only: nothing else may go into the repository.
"""

from __future__ import annotations

import base64
import shutil
import sys
import time
from pathlib import Path
from typing import Any

from selenium import webdriver

import vitscope

HERE = Path(__file__).parent
FLAGS = ("--headless=new", "--no-sandbox", "--hide-scrollbars", "--window-size=1280,900")


def wait(browser: Any, condition: str) -> None:
    while not browser.execute_script(f"return {condition}"):
        time.sleep(0.05)


def shoot(browser: Any, name: str, height: int, selector: str = "") -> None:
    """The page from its top, or one element, at 1.25 pixels per pixel."""
    box = {"x": 0, "y": 0, "width": 1280, "height": height}
    if selector:
        script = (
            "const b = document.querySelector(arguments[0]).getBoundingClientRect();"
            "return [b.x + scrollX, b.y + scrollY, b.width, b.height]"
        )
        x, y, w, h = browser.execute_script(script, selector)
        box = {"x": x - 12, "y": y - 4, "width": w + 24, "height": h + 16}
    shot = {"captureBeyondViewport": True, "clip": {**box, "scale": 1.25}}
    picture = browser.execute_cdp_cmd("Page.captureScreenshot", shot)["data"]
    (HERE / f"{name}.png").write_bytes(base64.b64decode(picture))


def main(model: str) -> None:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        with vitscope.explore(model, "mnist5k", split="test") as explorer:
            browser.get(f"{explorer.url}&item=4&token=7&block=2")
            wait(browser, "document.body.dataset.started === 'true'")
            wait(browser, "[...document.images].every(i => i.complete && i.naturalWidth)")
            shoot(browser, "explore", 1290)
            browser.execute_script(
                "document.querySelector('#eps').value = 24; document.querySelector('#attack-go').click()"
            )
            wait(browser, "document.querySelector('.broken-view')")
            shoot(browser, "explore-break", 0, ".broken-view")
    finally:
        browser.quit()


if __name__ == "__main__":
    main(sys.argv[1])
