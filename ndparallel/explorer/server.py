"""A server for one reader: the page, and answers to it, on this machine alone.

Idea   The standard library's server is enough for one browser on 127.0.0.1. It answers GET / with the page
       and POST /NAME with the answer of the screen NAME to the JSON that the page sent. The documents that
       the page leads to it has read before. It reads no file that a request names, and writes none.
Limit  Whoever can run programs under another account of this machine can reach the port as well; there is
       nothing to be had there but arithmetic.

Glossary
    superseded   a question that a newer one of the same screen has overtaken while it waited: it is dropped
"""

import json
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from ndparallel.base.errors import UserError
from ndparallel.explorer.documents import Document

HOST = "127.0.0.1"
MOST_BYTES = 1_000_000  # of a question: a config.json fits
SECONDS = 10  # for a question to arrive
Screen = Callable[[Mapping[str, Any]], dict[str, Any]]


class Superseded(Exception):
    """A newer question of the same screen waits."""


class QuestionQueue:
    """Answers one question at a time, and beside it one of each screen that is `aside`. Of those that wait,
    the newest of each screen is answered, and the others are dropped."""

    def __init__(self, screens: Mapping[str, Screen], aside: Sequence[str] = ()) -> None:
        busy = threading.Lock()
        self.screens = screens
        self.busy = {name: threading.Lock() if name in aside else busy for name in screens}
        self.newest: dict[str, int] = defaultdict(int)
        self.counting = threading.Lock()

    def answer(self, screen: str, question: Mapping[str, Any]) -> dict[str, Any]:
        """Answer a question. Raises Superseded where a newer one has come meanwhile."""
        with self.counting:
            self.newest[screen] += 1
            number = self.newest[screen]
        with self.busy[screen]:
            if number < self.newest[screen]:
                raise Superseded
            try:
                return self.screens[screen](question)
            except UserError as error:
                return {"error": str(error)}


class Explorer(ThreadingHTTPServer):
    """The server, on a free port of 127.0.0.1."""

    daemon_threads = True

    def __init__(
        self,
        page: str,
        policy: str,
        screens: Mapping[str, Screen],
        port: int = 0,
        aside: Sequence[str] = (),
        documents: Mapping[str, Callable[[], Document]] | None = None,
    ) -> None:
        super().__init__((HOST, port), Handler)
        self.documents = documents or {}
        self.page, self.policy, self.questions = page.encode(), policy, QuestionQueue(screens, aside)
        self.hosts = {f"{name}:{self.server_port}" for name in (HOST, "localhost")}

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server_port}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a tab that was closed before its answer."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)


class Handler(BaseHTTPRequestHandler):
    server: Explorer
    timeout = SECONDS
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # of an answer's two writes the second does not wait for a receipt
    server_version, sys_version = "ndparallel", ""

    def do_GET(self) -> None:
        name = self.path.partition("?")[0].removeprefix("/")
        if not self.is_ours():
            self.refuse(403, "this page is for the browser on this machine")
        elif not name:
            self.reply(200, "text/html; charset=utf-8", self.server.page)
        elif name in self.server.documents:
            kind, policy, content = self.server.documents[name]()
            self.reply(200, kind, content, policy)
        else:
            self.refuse(404, "there is one page, /, and the documents that it leads to")

    def do_POST(self) -> None:
        screen = self.path.removeprefix("/")
        if not self.is_ours():
            self.refuse(403, "another site's page has no business here")
        elif screen not in self.server.questions.screens:
            self.refuse(404, f"there is no screen {screen[:40]!r}")
        elif not self.headers.get("Content-Type", "").startswith("application/json"):
            self.refuse(415, "a question is application/json")
        elif not 0 < self.length() <= MOST_BYTES:
            self.refuse(413, f"a question has 1 to {MOST_BYTES:,} bytes, and says how many")
        else:
            self.answer(screen)

    def answer(self, screen: str) -> None:
        try:
            question = json.loads(self.rfile.read(self.length()))
            if not isinstance(question, dict):
                raise ValueError
            found = self.server.questions.answer(screen, question)
            self.reply(200, "application/json", json.dumps(found, allow_nan=False).encode())
        except Superseded:
            self.reply(200, "application/json", b'{"superseded": true}')
        except (ValueError, RecursionError):
            self.refuse(400, "a question is one JSON object")

    def is_ours(self) -> bool:
        """Whether the request is for this server under its own name, and from no other site's page."""
        origin = self.headers.get("Origin")
        return self.headers.get("Host") in self.server.hosts and (
            origin is None or origin.removeprefix("http://") in self.server.hosts
        )

    def length(self) -> int:
        words = self.headers.get("Content-Length", "")
        return int(words) if words.isascii() and words.isdigit() and len(words) < 10 else 0

    def refuse(self, code: int, reason: str) -> None:
        self.close_connection = True  # what it sends besides is not read
        self.reply(code, "application/json", json.dumps({"error": reason}).encode())

    def reply(self, code: int, kind: str, content: bytes, policy: str = "") -> None:
        self.send_response(code)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("Content-Security-Policy", policy or self.server.policy)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *words: Any) -> None:
        """Print nothing: the terminal is the reader's."""
