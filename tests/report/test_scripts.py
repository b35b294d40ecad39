"""One file draws maps in the explorer and in reports: the page holds it as a function among others."""

from __future__ import annotations

from typing import Any

import pytest

from vitscope.report import scripts
from vitscope.report.scripts import in_one_script, read

MODULES = {
    "a.js": 'export const one = 1;\nconst hidden = 2;\nexport class Two { value() { return hidden; } }\n',
    "b.js": 'import { Two, one } from "./a.js";\n\nconst hidden = 3;\nanswer(one + new Two().value() + hidden);\n',
}  # fmt: skip


def test_modules_in_one_script_keep_their_own_names(monkeypatch: pytest.MonkeyPatch, browser: Any) -> None:
    monkeypatch.setattr(scripts, "read", MODULES.get)
    code = f"let found; const answer = (x) => {{ found = x; }};{in_one_script(['a', 'b'])}return found;"
    found = browser.execute_script(code)
    assert found == 6


def test_no_import_or_export_is_left_and_every_import_is_there_before_it() -> None:
    names = ["draw", "maps", "encoded", "page", "gallery", "sentences"]
    code = in_one_script(names)
    lines = code.splitlines()
    assert [line for line in lines if line.startswith(("import ", "export "))] == []
    for name in names:
        for wanted, source in scripts.IMPORT.findall(read(f"{name}.js")):
            offered = set(scripts.EXPORT.findall(read(f"{source}.js")))
            assert set(wanted.strip("{} ").split(", ")) <= offered
            assert names.index(source) < names.index(name)
