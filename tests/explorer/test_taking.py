"""Take it with you: the script prints the page's numbers, Save writes a run that reports read, a cell shows it."""

from __future__ import annotations

import io
import runpy
import sys

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import vitscope
from vitscope.explorer.opening import notebook_origins
from vitscope.explorer.script import script
from vitscope.explorer.session import Session
from vitscope.explorer.transfer import unpack
from vitscope.runs import Run

CHANGES = [
    {"kind": "head", "block": 1, "head": 0, "by": "mean"},
    {"kind": "tokens", "block": 2, "tokens": [3, 4, 5], "by": "zero"},
    {"kind": "patch", "block": 0, "tokens": [8], "subject": {"item": 2}},
]


def run_script(text, folder, monkeypatch, capsys) -> tuple[dict[int, float], float]:
    """What a script prints: probabilities by class, and the logit of its last line."""
    (folder / "taken.py").write_text(text)
    monkeypatch.chdir(folder)
    capsys.readouterr()
    runpy.run_path(str(folder / "taken.py"))
    *lines, last = capsys.readouterr().out.splitlines()
    return {int(k.split()[1]): float(v) for k, v in (line.split(":") for line in lines)}, float(last.rpartition(" ")[2])


def same_numbers(printed, shown) -> None:
    head, arrays = shown
    probabilities, logit = printed
    known = {c: p for c, p, _ in head["answers"]}
    assert len(probabilities) == 5
    for number, p in probabilities.items():
        assert p == pytest.approx(known[number], abs=2e-6)
    assert logit == pytest.approx(float(arrays["logit"][-1, 0]), rel=1e-4, abs=1e-5)


def test_the_script_prints_the_numbers_of_the_page(client, tmp_path, monkeypatch, capsys):
    """An attacked item under three changes, one of them a patch from another item."""
    done = client.break_it(subject={"item": 6}, attack="pgd", eps=10, steps=2)[-1]["done"]
    asked = {"subject": {"hash": done["hash"]}, "changes": CHANGES, "class": 4}
    text = client.http.post("/api/script", json={"views": [asked]}).text
    assert "perturb(model" in text
    assert text.count("def change_") == 3
    same_numbers(run_script(text, tmp_path, monkeypatch, capsys), client.look(**asked))


def test_the_script_of_a_corrupted_then_attacked_picture(client, tmp_path, monkeypatch, capsys):
    first = client.break_it(subject={"item": 3}, corruption="contrast", severity=3)[-1]["done"]["hash"]
    second = client.break_it(subject={"hash": first}, attack="fgsm", eps=6)[-1]["done"]["hash"]
    asked = {"subject": {"hash": second}}
    same_numbers(
        run_script(client.http.post("/api/script", json={"views": [asked]}).text, tmp_path, monkeypatch, capsys),
        client.look(**asked),
    )


def test_the_script_of_two_models_prints_both(model, digits, tmp_path, monkeypatch, capsys):
    session = Session([model, model], digits)
    asked = [session.asked({"subject": {"item": 1}, "model": number, "class": 2}) for number in (0, 1)]
    _, arrays = unpack(session.look(asked[0], lambda: None))
    (tmp_path / "both.py").write_text(script(session, asked))
    capsys.readouterr()
    runpy.run_path(str(tmp_path / "both.py"))
    lines = capsys.readouterr().out.splitlines()
    assert (lines[0], lines[7]) == (model.name, f"{model.name} (2)")
    assert lines[1:7] == lines[8:]
    assert float(lines[6].rpartition(" ")[2]) == pytest.approx(float(arrays["logit"][-1, 0]), rel=1e-4, abs=1e-5)


def test_save_writes_a_run_folder_whose_script_finds_a_dropped_picture(client, explorer, monkeypatch, capsys):
    file = io.BytesIO()
    pixels = np.random.default_rng(3).integers(0, 255, (33, 50, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    name = client.http.post("/api/upload", content=file.getvalue()).json()["hash"]
    asked = {"subject": {"hash": name}, "changes": CHANGES[:2]}
    folder = Run.open(client.http.post("/api/save", json=asked).json()["folder"]).path
    run = Run.open(folder)
    assert (run.kind, run.status) == ("explore", "finished")
    shown = client.look(**asked)
    table = run.table("explored").set_index("class")
    for number, p, _ in shown[0]["answers"][:5]:
        assert table.loc[number, "after"] == pytest.approx(p)
    before = {c: p for c, p, _ in client.look(subject={"hash": name})[0]["answers"]}
    assert table["before"].to_dict() == pytest.approx({c: before.get(c, table.loc[c, "before"]) for c in table.index})
    maps = run.table("maps_logit")
    grid = maps[maps["block"] == 2].sort_values(["row", "col"])["value"]
    assert np.allclose(grid, shown[1]["logit"][3, 1:], rtol=1e-5)
    page = (folder / "report.html").read_text()
    assert "What did the change do to the answer?" in page
    assert "Head 0 of block 1 is switched off" in page
    same_numbers(run_script((folder / "script.py").read_text(), folder, monkeypatch, capsys), shown)
    again = client.http.post("/api/save", json=asked).json()["folder"]
    assert again != str(folder)  # nothing is overwritten


def test_in_a_notebook_it_shows_itself_in_a_cell(model, digits, monkeypatch, tmp_path):
    """Framed by the notebook's origin alone; cookies do not travel into frames, so the key stays in the address."""
    httpx = pytest.importorskip("httpx")
    shell = type("ZMQInteractiveShell", (), {})()
    monkeypatch.setitem(sys.modules, "IPython", type("IPython", (), {"get_ipython": staticmethod(lambda: shell)}))
    with vitscope.explore(model, digits, frame="http://localhost:9999") as explorer:
        cell = explorer._repr_html_()
        assert f'src="{explorer.url}"' in cell
        answer = httpx.get(explorer.url, trust_env=False)
        assert answer.status_code == 200
        assert answer.headers["content-security-policy"].endswith("frame-ancestors http://localhost:9999")
        key = {"x-vitscope-token": explorer.guard.token}
        assert httpx.get(f"{explorer.url.split('/?')[0]}/api/start", headers=key, trust_env=False).status_code == 200
        url = explorer.url
    with pytest.raises(httpx.ConnectError):
        httpx.get(url, trust_env=False)
    assert notebook_origins() == ("http://localhost:8888", "http://127.0.0.1:8888")  # where Jupyter mostly is
    connect = type("connect", (), {"get_connection_file": staticmethod(lambda: str(tmp_path / "kernel-1.json"))})
    monkeypatch.setitem(sys.modules, "ipykernel.connect", connect)
    monkeypatch.setenv("JPY_PARENT_PID", "77")
    (tmp_path / "jpserver-77.json").write_text('{"port": 8901, "secure": true}')
    with vitscope.explore(model) as explorer:
        policy = explorer.guard.headers()["Content-Security-Policy"]
        assert policy.endswith("frame-ancestors https://localhost:8901 https://127.0.0.1:8901")


def test_the_panel_draws_several_saved_views(tmp_path):
    from vitscope.explorer.panel import explored_panel

    runs = {}
    for label, after in (("a", 0.9), ("b", 0.2)):
        with Run.create(tmp_path / label, {"label": label}, kind="explore") as run:
            rows = {"class": [0, 1], "class_name": ["zero", "one"], "before": [0.6, 0.4], "after": [after, 1 - after]}
            run.write_table("explored", pd.DataFrame(rows))
        runs[label] = Run.open(tmp_path / label)
    panel = explored_panel(runs)
    assert [finding.text for finding in panel.findings] == [
        "a: the answer is zero with 90.0 % (60.0 % without the changes).",
        "b: the answer is one with 80.0 % (40.0 % without the changes).",
    ]
    assert [value.number for value in panel.card.values.values()] == [90, 80]
