"""Only the printed address lets in; foreign hosts, pages and frames are refused."""

from __future__ import annotations

import contextlib
import io
import signal
import socket
import sys
import time

import pytest
from PIL import Image

import launch
import vitscope
from vitscope.errors import VitscopeError
from vitscope.explorer.safety import Guard, check_origin


def test_it_listens_on_this_machine_only(explorer):
    assert explorer._socket.getsockname()[0] == "127.0.0.1"
    assert explorer.url.startswith("http://127.0.0.1:")


def test_the_token_of_the_address_becomes_a_cookie_that_scripts_cannot_read(explorer):
    httpx = pytest.importorskip("httpx")
    with httpx.Client(trust_env=False) as http:
        answer = http.get(explorer.url + "&item=3")
        assert (answer.status_code, answer.headers["location"]) == (303, "/?item=3")
        cookie = answer.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        assert f"vitscope-{explorer.guard.port}=" in cookie  # cookies do not know ports
        assert http.get(explorer.url.split("/?")[0]).status_code == 200


@pytest.mark.parametrize("path", ["/", "/api/start", "/api/items", "/api/thumb/0", "/?key=wrong"])
def test_without_token_and_cookie_nothing_is_answered(explorer, path):
    httpx = pytest.importorskip("httpx")
    answer = httpx.get(explorer.url.split("/?")[0] + path, trust_env=False)
    assert answer.status_code == 401
    assert "Open the address" in answer.text


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"host": "evil.example:{port}"}, 403),  # a name that was rebound to this machine
        ({"host": "127.0.0.1"}, 403),
        ({"host": "evil.example@127.0.0.1:{port}"}, 403),
        ({"host": "[::1"}, 403),  # no address at all
        ({"host": "localhost:{port}", "origin": "http://localhost:{port}"}, 200),
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://127.0.0.1:1"}, 403),  # another server on this machine
        ({"origin": "https://127.0.0.1:{port}"}, 403),
        ({"origin": "http://evil.example@127.0.0.1:{port}"}, 403),
        ({"origin": "http://["}, 403),
        ({"origin": "null"}, 403),  # a file, or a frame without an origin
        ({"origin": None}, 403),
    ],
)
def test_host_and_origin_are_checked(client, headers, status):
    port = client.base.rpartition(":")[2]
    given = {k: v and v.format(port=port) for k, v in headers.items()}
    request = client.http.build_request("POST", "/api/look", json={"subject": {"item": 0}})
    for name, value in given.items():
        if value is None:
            del request.headers[name]
        else:
            request.headers[name] = value
    if "localhost" in given.get("host", ""):
        request.headers["cookie"] = f"vitscope-{port}={client.http.cookies[f'vitscope-{port}']}"
    answer = client.http.send(request)
    assert answer.status_code == status
    assert "content-security-policy" in answer.headers


def test_every_answer_has_a_policy_without_outside_sources_and_inline_script(client):
    for path in ("/", "/page/main.js", "/api/start", "/nothing"):
        headers = client.http.get(path).headers
        policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
        assert policy["default-src"] == "'none'"
        assert policy["script-src"] == "'self'"
        assert policy["style-src"] == "'self'"
        assert policy["frame-ancestors"] == "'none'"
        assert "unsafe" not in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"


@pytest.mark.parametrize("path", ["/page/../server.py", "/page/..%2Fserver.py", "/page/x.js", "/page/%2Fetc%2Fpasswd"])
def test_no_other_file_than_the_pages_own_is_given(client, path):
    assert client.http.get(path).status_code == 404


def test_only_a_notebooks_own_origin_may_frame_it():
    guard = Guard(port=1, frame=(check_origin("http://localhost:8888"),))
    assert guard.headers()["Content-Security-Policy"].endswith("frame-ancestors http://localhost:8888")
    for wrong in ("localhost:8888", "http://*", "http://a; script-src *", "http://a/b", "file:///x", "http://a b"):
        with pytest.raises(VitscopeError, match="origin"):
            check_origin(wrong)


def test_an_address_for_others_takes_numbers_and_its_own_name_not_foreign_ones():
    guard = Guard("0.0.0.0", 8000)
    assert guard.knows_host("192.0.2.7:8000")
    assert guard.knows_host(f"{socket.gethostname()}:8000")
    assert not guard.knows_host("evil.example:8000")
    assert not Guard("127.0.0.1", 8000).knows_host("192.0.2.7:8000")


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    with pytest.raises(VitscopeError, match=r"pip install 'vitscope\[explore\]'"):
        vitscope.explore("vit_tiny_patch16_224")


def test_a_port_in_use_is_said_in_words(explorer, model):
    with pytest.raises(VitscopeError, match="Cannot listen on"):
        vitscope.explore(model, port=explorer.guard.port)


def test_ctrl_c_ends_it_at_once_and_leaves_nothing_behind(weights, tmp_path):
    httpx = pytest.importorskip("httpx")
    sizes = ["img_size=28", "patch_size=7", "in_chans=1", "embed_dim=16", "depth=3", "num_heads=2"]
    words = ["vit_tiny_patch16_224", "--weights", weights(0), "--no-browser", "--model-options", *sizes]
    process = launch.Launched("-m", "vitscope", "explore", *words, cwd=tmp_path)
    try:
        while process.running() and len(process.said("stdout").splitlines()) < 2:
            time.sleep(0.01)
        told, address = process.said("stdout").splitlines()[:2]
        assert "Ctrl-C ends it" in told
        address = address.strip()
        port = int(address.split(":")[2].split("/")[0])
        held = socket.create_connection(("127.0.0.1", port), 5)  # somebody who is still connected
        http = httpx.Client(base_url=address.split("/?")[0], trust_env=False, timeout=30)
        http.headers["origin"] = str(http.base_url).rstrip("/")
        http.get(address)
        picture = io.BytesIO()
        Image.new("RGB", (30, 30), "red").save(picture, "PNG")
        subject = http.post("/api/upload", content=picture.getvalue()).json()
        attack = {"subject": subject, "attack": "pgd", "eps": 8, "steps": 100}
        with contextlib.suppress(httpx.TransportError), http.stream("POST", "/api/break", json=attack) as answer:
            assert "steps" in next(answer.iter_lines())  # and an attack that is at its first step
            process.kill(signal.SIGINT)
            begun = time.monotonic()
            ended = process.wait(20)
            waited = time.monotonic() - begun
        held.close()
        http.close()
    finally:
        process.kill()
    assert ended.returncode == 130
    assert ended.stderr.strip() == "Stopped.", ended.stderr
    assert waited < 15  # a guard against hanging, not a measurement
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(OSError):
        socket.create_connection(("127.0.0.1", port), 1)
