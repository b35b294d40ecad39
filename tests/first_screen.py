"""What a reader of a report sees before scrolling, at 1280 x 800."""

from __future__ import annotations

from pathlib import Path
from typing import Any

WORDS = """
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT), words = [];
    while (walker.nextNode()) {
      const text = walker.currentNode, range = document.createRange();
      if (['SCRIPT', 'STYLE', 'NOSCRIPT'].includes(text.parentElement.tagName)) continue;
      if (!text.parentElement.checkVisibility()) continue;
      range.selectNodeContents(text);
      const boxes = [...range.getClientRects()];
      const seen = boxes.some((r) => r.width > 1 && r.right > 0 && r.top < innerHeight && r.bottom > 0);
      if (seen) words.push(...text.textContent.split(/\\s+/).filter(Boolean));
    }
    return words;
"""
SEEN = """
    return [...document.querySelectorAll(arguments[0])].filter((e) => {
      const r = e.getBoundingClientRect();
      return r.width > 50 && r.top >= 0 && r.bottom <= innerHeight;
    }).length
"""


def first_screen(browser: Any, page: Path) -> tuple[list[str], int, int]:
    """Words, whole pictures, and whole small figures of cards."""
    size = {"width": 1280, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.as_uri())
    whole = [browser.execute_script(SEEN, kind) for kind in (".hero img", ".small-figure svg")]
    return browser.execute_script(WORDS), whole[0], whole[1]
