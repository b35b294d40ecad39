"""Who may ask: this machine's browser with the printed address, and nobody else.

* The server listens on 127.0.0.1 unless told otherwise.
* A random token in the address becomes a cookie (HttpOnly, SameSite=Strict); without one of them nothing is answered.
* Host is checked, so a foreign name that was rebound to this machine is refused; Origin is, so a foreign page is.
* A content security policy allows no outside source and no inline script, and framing by nobody, or by one origin.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
import socket
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from vitscope.errors import VitscopeError

TOKEN, HEADER = "key", "x-vitscope-token"
OPEN_PATHS = ("/page/",)  # the page's own files, the same for everybody


@dataclass
class Guard:
    """What is allowed, and the answers to what is not: `refusal` is None or (status, words)."""

    host: str = "127.0.0.1"
    port: int = 0
    frame: tuple[str, ...] = ()  # origins that may show the page in a frame
    token: str = field(default_factory=lambda: secrets.token_urlsafe(24))

    @property
    def cookie(self) -> str:
        return f"vitscope-{self.port}"  # cookies do not know ports

    @property
    def address(self) -> str:
        host = "127.0.0.1" if self.host in ("0.0.0.0", "::") else self.host
        return f"http://{f'[{host}]' if ':' in host else host}:{self.port}/?{TOKEN}={self.token}"

    def knows_host(self, given: str) -> bool:
        """Is this Host header one of ours? An address given by number cannot be rebound."""
        try:
            split = urlsplit(f"//{given}")
            name, port = (split.hostname or "").lower(), split.port or 80
        except ValueError:
            return False
        if port != self.port or split.netloc != given or "@" in given:
            return False
        if name in ("127.0.0.1", "localhost", "::1", self.host.lower()):
            return True
        if self.host not in ("0.0.0.0", "::"):
            return False
        return _is_number(name) or name == socket.gethostname().lower()

    def refusal(
        self, method: str, path: str, host: str, origin: str | None, token: str | None
    ) -> tuple[int, str] | None:
        """Why a request is not answered."""
        if not self.knows_host(host):
            return 403, "This server answers under its own address only: open the one that was printed."
        if origin is not None and not self._own(origin):
            return 403, "Requests from other pages are not answered."
        if origin is None and method not in ("GET", "HEAD"):
            return 403, "A request that changes something must say which page it comes from."
        if path.startswith(OPEN_PATHS):
            return None
        if token is None or not hmac.compare_digest(token.encode(), self.token.encode()):
            return 401, "Open the address that `vitscope explore` printed: it carries the token that lets you in."
        return None

    def _own(self, origin: str) -> bool:
        return origin.startswith("http://") and self.knows_host(origin.removeprefix("http://"))

    def headers(self) -> dict[str, str]:
        """Of every answer."""
        framing = " ".join(self.frame) or "'none'"
        policy = (
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
            f"base-uri 'none'; form-action 'none'; frame-ancestors {framing}"
        )
        return {
            "Content-Security-Policy": policy,
            "X-Content-Type-Options": "nosniff",
            "Referrer-Policy": "no-referrer",
            "Cross-Origin-Resource-Policy": "same-origin",
            "Cross-Origin-Opener-Policy": "same-origin",
            "Cache-Control": "no-store",
        }


def check_origin(frame: str) -> str:
    """'http://localhost:8888' -> the same; anything that is no origin is refused."""
    split = urlsplit(frame)
    if split.scheme not in ("http", "https") or not split.hostname or split.path not in ("", "/") or split.query:
        raise VitscopeError(f"{frame!r} is no origin: expected something like http://localhost:8888.")
    if any(c in frame for c in " ;,'\"*"):
        raise VitscopeError(f"{frame!r}: one origin, without wildcards.")
    return f"{split.scheme}://{split.netloc}"


def _is_number(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
