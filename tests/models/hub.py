"""A small hub on this machine: it serves folders as models."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download takes."""

    folders: dict = {}
    requests: list = []

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.requests.append((self.command, self.path))
        parts = self.path.strip("/").split("/")
        if "tree" in parts:
            return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        if parts[:2] == ["api", "models"]:
            name = "/".join(parts[2:])
            if name == "gated/model":
                return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
            if name not in self.folders:
                return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
            files = [{"rfilename": path.name} for path in self.folders[name].iterdir()]
            return self.answer(200, json.dumps({"id": name, "siblings": files}).encode())
        name, filename = "/".join(parts[:-3]), parts[-1]
        path = self.folders[name] / filename if name in self.folders else None
        if path is None or not path.exists():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        return self.answer(
            200, path.read_bytes(), {"X-Repo-Commit": "c" * 40, "ETag": '"e-' + filename + '"'}
        )

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(body)

    def log_message(self, *_):
        pass


@contextmanager
def serving() -> Iterator[str]:
    """The address of a hub that runs meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
