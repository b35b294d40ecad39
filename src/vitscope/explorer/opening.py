"""`explore`: open a model in the browser or in a notebook's cell."""

from __future__ import annotations

import html
import json
import os
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitscope.analyses.options import with_values
from vitscope.errors import VitscopeError
from vitscope.explorer.options import ExploreOptions
from vitscope.explorer.safety import Guard, check_origin

if TYPE_CHECKING:
    from vitscope.explorer.session import Session

STARTING = 60.0  # seconds; a busy machine takes its time


class Explorer:
    """A running explorer: `url` opens it, `close()` ends it. In a notebook's cell it shows itself."""

    def __init__(self, session: Session, guard: Guard, out: str | None = None) -> None:
        uvicorn = import_uvicorn()
        from vitscope.explorer.server import Server

        self.session, self.guard = session, guard
        family = socket.AF_INET6 if ":" in guard.host else socket.AF_INET
        self._socket = socket.socket(family, socket.SOCK_STREAM)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            self._socket.bind((guard.host, guard.port))
        except OSError as error:
            self._socket.close()
            raise VitscopeError(
                f"Cannot listen on {guard.host}, port {guard.port}: {error.strerror}. Leave --port out for a free one."
            ) from error
        guard.port = self._socket.getsockname()[1]
        self._server = Server(session, guard, out)
        quiet: dict[str, Any] = {"log_level": "critical", "access_log": False, "lifespan": "off", "ws": "none"}
        config = uvicorn.Config(self._server.application(), timeout_graceful_shutdown=0, **quiet)
        self._uvicorn = uvicorn.Server(config)
        # An event, since Python 3.11 takes a thread for ended once Ctrl-C interrupts a join of it.
        self._ended = threading.Event()
        threading.Thread(target=self._serve, name="vitscope-explorer-server", daemon=True).start()
        until = time.monotonic() + STARTING
        while not self._uvicorn.started and not self._ended.is_set() and time.monotonic() < until:
            time.sleep(0.01)
        if not self._uvicorn.started:
            self.close()
            raise VitscopeError("The server did not start.")

    @property
    def url(self) -> str:
        """The address with the token that lets you in."""
        return self.guard.address

    def wait(self) -> None:
        """Until it ends; Ctrl-C interrupts."""
        while not self._ended.wait(0.5):
            pass

    def close(self) -> None:
        """End the server and whatever it computes. May be called twice."""
        self._uvicorn.should_exit = self._uvicorn.force_exit = True
        self._server.queue.close()
        self._ended.wait(5)

    def _serve(self) -> None:
        try:
            self._uvicorn.run(sockets=[self._socket])
        finally:
            self._socket.close()
            self._ended.set()

    def __enter__(self) -> Explorer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """A notebook's cell."""
        source = html.escape(self.url, quote=True)
        look = 'width="100%" height="900" style="border:0" allow="clipboard-write" title="vitscope explore"'
        return f'<iframe src="{source}" {look}></iframe>'

    def __repr__(self) -> str:
        return f"Explorer({', '.join(m.name for m in self.session.models)} at {self.url})"


def explore(model: Any = None, data: Any = None, *, options: ExploreOptions | None = None, **given: Any) -> Explorer:
    """Open one or more models in the browser, or, as the last line of a notebook's cell, below it.

    model: an opened Model, anything that `open_model` takes, or a list of these. data: from `load_data`, its first
    argument, or nothing: pictures can be dropped on the page.
    options, given: `ExploreOptions`, whole or as keywords (split="test", port=8000, frame="http://localhost:8889");
    keywords win. `browser` is False here unless given: the address is `.url`, and `.close()` ends it.
    """
    import_uvicorn()
    chosen = with_values(options or ExploreOptions(browser=False), given)
    models = [] if model is None else list(model) if isinstance(model, list | tuple) else [model]
    opened = chosen.open(models)
    return start(opened, chosen.load(opened, data), chosen)


def start(models: Sequence[Any], data: Any, options: ExploreOptions) -> Explorer:
    """An explorer of models and data that are open."""
    from vitscope.explorer.session import Session

    frame = (check_origin(options.frame),) if options.frame else notebook_origins()
    explorer = Explorer(Session(models, data), Guard(options.host, options.port, frame), options.out)
    if options.browser:
        threading.Thread(target=webbrowser.open, args=(explorer.url,), daemon=True).start()
    return explorer


def notebook_origins() -> tuple[str, ...]:
    """Where the page of the notebook comes from whose kernel this is; nothing outside of notebooks."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    if type(shell).__name__ != "ZMQInteractiveShell":
        return ()
    scheme, port = "http", 8888  # where Jupyter is, unless told otherwise
    try:  # Jupyter's server leaves a file about itself beside those of its kernels
        kernels = Path(sys.modules["ipykernel.connect"].get_connection_file()).parent
        server = json.loads((kernels / f"jpserver-{os.environ['JPY_PARENT_PID']}.json").read_text("utf-8"))
        scheme, port = "https" if server["secure"] else "http", int(server["port"])
    except (KeyError, OSError, RuntimeError, TypeError, ValueError):
        pass  # started by something else
    return tuple(f"{scheme}://{host}:{port}" for host in ("localhost", "127.0.0.1"))


def import_uvicorn() -> Any:
    try:
        import starlette  # noqa: F401
        import uvicorn
    except ImportError as error:
        raise VitscopeError(
            "The explorer needs starlette and uvicorn, which are not installed: pip install 'vitscope[explore]'."
        ) from error
    return uvicorn
