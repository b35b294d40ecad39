"""The picture in the README: the first screen of the demo's report, as a browser shows it.

    vitscope demo && python docs/figures/demo.py runs/demo/report.html

Needs chromium and chromedriver. Pictures of handwritten digits only: nothing else may go into the repository.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By

FLAGS = (
    "--headless=new",
    "--no-sandbox",
    "--hide-scrollbars",
    "--window-size=1180,1600",
    "--force-device-scale-factor=1.25",
)
SHOW = 'document.getElementById("top").style.padding = "16px 24px"'  # a margin


def main(report: str) -> None:
    options = webdriver.ChromeOptions()
    for flag in FLAGS:
        options.add_argument(flag)
    browser = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
    try:
        browser.get(Path(report).resolve().as_uri())
        browser.execute_script(SHOW)
        Path(__file__).with_suffix(".png").write_bytes(browser.find_element(By.ID, "top").screenshot_as_png)
    finally:
        browser.quit()


if __name__ == "__main__":
    main(sys.argv[1])
