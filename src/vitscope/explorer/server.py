"""The web server: Starlette routes around one session and its queue. Handlers only parse, submit and answer."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from vitscope import report
from vitscope.errors import VitscopeError
from vitscope.explorer import breaking
from vitscope.explorer.queue import Cancelled, JobQueue, Ticket
from vitscope.explorer.safety import HEADER, TOKEN, Guard
from vitscope.explorer.saving import save
from vitscope.explorer.script import script
from vitscope.explorer.session import Session
from vitscope.explorer.start import item_facts, start_facts
from vitscope.explorer.subjects import MOST_BYTES
from vitscope.report.scripts import SHARED

PAGE = Path(__file__).parent / "page"
SHARED_FILES = [Path(report.__file__).parent / name for name in SHARED]  # what draws maps draws them in reports, too
KINDS = {".js": "text/javascript", ".css": "text/css", ".html": "text/html", ".svg": "image/svg+xml"}
MOST_JSON = 200_000  # bytes of a request
THUMB = 64  # pixels


class Server:
    """Routes of one explorer."""

    def __init__(self, session: Session, guard: Guard, out: str | None = None) -> None:
        self.session, self.guard, self.queue, self.out = session, guard, JobQueue(), out

    def application(self) -> Starlette:
        post = ["POST"]
        return Starlette(
            routes=[
                Route("/", self.page),
                Route("/page/{name}", self.file),
                Route("/api/start", self.start),
                Route("/api/items", self.items),
                Route("/api/thumb/{item:int}", self.thumb),
                Route("/api/upload", self.upload, methods=post),
                Route("/api/look", self.look, methods=post),
                Route("/api/rows", self.rows, methods=post),
                Route("/api/break", self.broken, methods=post),
                Route("/api/script", self.script, methods=post),
                Route("/api/save", self.save, methods=post),
            ],
            middleware=[Middleware(Guarded, guard=self.guard)],
        )

    # --- the page ---------------------------------------------------------------------------------------------------

    async def page(self, request: Request) -> Response:
        """The token of the address becomes a cookie; in a notebook's frame cookies do not travel, and it stays."""
        framed = bool(self.guard.frame)
        if TOKEN in request.query_params and not framed:
            rest = "&".join(part for part in request.url.query.split("&") if not part.startswith(f"{TOKEN}="))
            answer: Response = RedirectResponse(f"/?{rest}" if rest else "/", 303)
        else:
            answer = Response((PAGE / "explorer.html").read_bytes(), media_type="text/html")
        answer.set_cookie(self.guard.cookie, self.guard.token, httponly=True, samesite="strict")
        return answer

    async def file(self, request: Request) -> Response:
        known = {path.name: path for path in (*PAGE.iterdir(), *SHARED_FILES) if path.suffix in KINDS}
        path = known.get(request.path_params["name"])
        if path is None:
            return PlainTextResponse("There is no such file.", 404)
        return Response(path.read_bytes(), media_type=KINDS[path.suffix])

    async def start(self, request: Request) -> Response:
        return JSONResponse(start_facts(self.session))

    async def items(self, request: Request) -> Response:
        try:
            first = int(request.query_params.get("from", "0"))
        except ValueError:
            first = 0
        return JSONResponse(item_facts(self.session, first))

    async def thumb(self, request: Request) -> Response:
        """A small picture of an item; read beside the queue, since no model is asked."""

        def work() -> bytes:
            data, item = self.session.data, request.path_params["item"]
            if data is None or not 0 <= item < len(data):
                raise VitscopeError(f"There is no item {item}.")
            image = data.read(item, masks=False).image.convert("RGB")
            image.thumbnail((THUMB, THUMB))
            file = io.BytesIO()
            image.save(file, "PNG")
            return file.getvalue()

        return Response(await asyncio.to_thread(work), media_type="image/png")

    # --- what is asked of the models --------------------------------------------------------------------------------

    async def upload(self, request: Request) -> Response:
        content = await _body(request, MOST_BYTES, "A picture")
        return JSONResponse({"hash": await asyncio.to_thread(self.session.store.take_upload, content)})

    async def look(self, request: Request) -> Response:
        return await self._binary(request, self.session.look)

    async def rows(self, request: Request) -> Response:
        return await self._binary(request, self.session.rows)

    async def _binary(self, request: Request, answer: Callable[..., bytes]) -> Response:
        given = await _json(request)
        ticket = self.queue.submit(lambda ticket: answer(self.session.asked(given), ticket.check))
        return Response(await _unless_left(request, ticket), media_type="application/octet-stream")

    async def broken(self, request: Request) -> Response:
        """Lines of JSON: {"step", "steps"} ..., then {"done"} or {"error"}. Who leaves stops it."""
        given = await _json(request)
        loop = asyncio.get_running_loop()
        lines: asyncio.Queue[dict[str, Any] | None] = asyncio.Queue()

        def tell(line: dict[str, Any] | None) -> None:
            loop.call_soon_threadsafe(lines.put_nowait, line)

        ticket = self.queue.submit(
            lambda ticket: breaking.break_picture(self.session, given, ticket),
            slow=True,
            progress=lambda step, steps: tell({"step": step, "steps": steps}),
        )
        ticket.result.add_done_callback(lambda _: tell(None))

        async def stream() -> AsyncIterator[bytes]:
            try:
                while (line := await lines.get()) is not None:
                    yield json.dumps(line).encode() + b"\n"
                error = ticket.result.exception()
                last = {"done": ticket.result.result()} if error is None else {"error": _told(error)}
                yield json.dumps(last).encode() + b"\n"
            finally:
                ticket.cancel()

        return StreamingResponse(stream(), media_type="application/x-ndjson")

    async def script(self, request: Request) -> Response:
        given = await _json(request)
        views = given.get("views")
        if not isinstance(views, list) or not 0 < len(views) <= len(self.session.models):
            raise VitscopeError("`views` is a list: what is to be looked at, once per model.")
        ticket = self.queue.submit(lambda ticket: script(self.session, [self.session.asked(view) for view in views]))
        return PlainTextResponse(await _unless_left(request, ticket))

    async def save(self, request: Request) -> Response:
        given = await _json(request)
        ticket = self.queue.submit(lambda ticket: save(self.session, self.session.asked(given), self.out))
        return JSONResponse({"folder": str(await _unless_left(request, ticket))})


class Guarded:
    """Middleware: every request passes the guard, every answer has its headers, every error is said in words."""

    def __init__(self, app: Any, guard: Guard) -> None:
        self.app, self.guard = app, guard

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        request, begun = Request(scope), False

        async def send_with_headers(message: Any) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                extra = [(k.lower().encode(), v.encode()) for k, v in self.guard.headers().items()]
                message["headers"] = [*message["headers"], *extra]
            await send(message)

        token = request.query_params.get(TOKEN) or request.cookies.get(self.guard.cookie) or request.headers.get(HEADER)
        refused = self.guard.refusal(
            request.method, request.url.path, request.headers.get("host", ""), request.headers.get("origin"), token
        )
        answer: Any = self.app if refused is None else PlainTextResponse(refused[1], refused[0])
        try:
            await answer(scope, receive, send_with_headers)
        except Cancelled:
            return None  # nobody listens any more
        except Exception as error:
            if begun:
                raise
            status = 400 if isinstance(error, VitscopeError) else 500
            await PlainTextResponse(_told(error), status)(scope, receive, send_with_headers)
        return None


def _told(error: BaseException) -> str:
    if isinstance(error, VitscopeError):
        return str(error)
    return f"This went wrong inside of vitscope: {type(error).__name__}: {error}"


async def _body(request: Request, most: int, what: str) -> bytes:
    """The raw body, cut off as soon as it is too long."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > most:
            raise VitscopeError(f"{what} may have {most:,} bytes at most.")
        parts.append(part)
    return b"".join(parts)


async def _json(request: Request) -> dict[str, Any]:
    try:
        given = json.loads(await _body(request, MOST_JSON, "A request"))
    except (ValueError, RecursionError) as error:
        raise VitscopeError("A request is JSON.") from error
    if not isinstance(given, dict):
        raise VitscopeError("A request is a JSON object.")
    return given


async def _unless_left(request: Request, ticket: Ticket) -> Any:
    """The result of a job; a client that leaves cancels it."""

    async def left() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    done: Awaitable[Any] = asyncio.wrap_future(ticket.result)
    gone = asyncio.ensure_future(left())
    finished, _ = await asyncio.wait({asyncio.ensure_future(done), gone}, return_when=asyncio.FIRST_COMPLETED)
    if gone in finished and not ticket.result.done():
        ticket.cancel()
    gone.cancel()
    return await done
