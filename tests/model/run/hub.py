"""A small hub on this machine: it serves folders as models."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import NamedTuple


class Sent(NamedTuple):
    """An answer with the bytes of a file: its address, how much was sent, and for which token."""

    path: str
    n_bytes: int
    token: str | None


class Hub(BaseHTTPRequestHandler):
    """As much of the hub's protocol as a download takes."""

    folders: dict = {}
    requests: list = []
    sent: list = []
    """What was sent of files to GET."""
    tokens: dict = {}
    """Models → the token without which they are private."""
    gated: set = set()
    """Models whose list of files is public, but whose files are not."""
    cdn: str | None = None
    """Where weights are: they are redirected there, and a token must not go along."""
    written: list = [0]
    """The bytes of all answers, as far as the other side took them."""
    busy: list = []
    """Statuses with which the next requests for files are refused."""
    ranges = True

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        self.requests.append((self.command, self.path))
        parts = self.path.strip("/").split("/")
        if "tree" in parts:
            return self.answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        if parts[:2] == ["api", "models"]:
            return self.list_files("/".join(parts[2:]))
        if "resolve" not in parts:
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        at = parts.index("resolve")
        name, filename = "/".join(parts[:at]), "/".join(parts[at + 2 :])
        if self.is_private(name):
            return self.answer(401, b"", {"X-Error-Code": "RepoNotFound"})
        if name in self.gated:
            return self.answer(403, b"", {"X-Error-Code": "GatedRepo"})
        path = self.folders[name] / filename if name in self.folders else None
        if path is None or not path.exists():
            return self.answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        if self.busy:
            return self.answer(self.busy.pop(), b"")
        here = f"http://{self.headers['Host']}"
        if self.cdn and here != self.cdn and path.suffix in (".safetensors", ".gguf"):
            return self.answer(302, b"", {"Location": self.cdn + self.path})
        return self.send_file(path)

    def is_private(self, name):
        return name in self.tokens and self.headers["Authorization"] != f"Bearer {self.tokens[name]}"

    def list_files(self, name):
        if name == "gated/model":
            return self.answer(403, b"{}", {"X-Error-Code": "GatedRepo"})
        if name not in self.folders or self.is_private(name):
            return self.answer(404, b"{}", {"X-Error-Code": "RepoNotFound"})
        folder = self.folders[name]
        files = [{"rfilename": str(path.relative_to(folder))} for path in folder.rglob("*.*")]
        return self.answer(200, json.dumps({"id": name, "siblings": files}).encode())

    def send_file(self, path):
        headers = {"X-Repo-Commit": "c" * 40, "ETag": f'"e-{path.name}"'}
        size = path.stat().st_size
        if not (self.ranges and "Range" in self.headers):
            return self.answer(200, path.read_bytes(), headers)
        start, last = map(int, self.headers["Range"].removeprefix("bytes=").split("-"))
        with path.open("rb") as file:
            file.seek(start)
            part = file.read(last + 1 - start)
        headers["Content-Range"] = f"bytes {start}-{start + len(part) - 1}/{size}"
        return self.answer(206, part, headers)

    def answer(self, status, body, headers=None):
        self.send_response(status)
        for key, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command == "GET":
            if status in (200, 206) and "/resolve/" in self.path:
                self.sent.append(Sent(self.path, len(body), self.headers["Authorization"]))
            try:
                for start in range(0, len(body), 2**16):
                    self.wfile.write(body[start : start + 2**16])
                    self.written[0] += len(body[start : start + 2**16])
            except ConnectionError:  # the other side has seen enough
                self.close_connection = True

    def log_message(self, *_):
        pass


@contextmanager
def serving() -> Iterator[str]:
    """The address of a hub that runs meanwhile."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


@contextmanager
def local_hub(monkeypatch, cache) -> Iterator[type[Hub]]:
    """A hub on this machine that huggingface_hub uses meanwhile, with an empty cache."""
    import huggingface_hub
    from huggingface_hub import constants

    from attnscope.model.files import checkpoint

    with serving() as endpoint:
        monkeypatch.setattr(constants, "ENDPOINT", endpoint)
        template = endpoint + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(huggingface_hub.hf_api.api, "endpoint", endpoint)
        defaults = {
            "folders": {},
            "requests": [],
            "sent": [],
            "written": [0],
            "tokens": {},
            "gated": set(),
        }
        for name, value in {**defaults, "cdn": None, "busy": [], "ranges": True}.items():
            monkeypatch.setattr(Hub, name, value)
        checkpoint._files_on_hub.cache_clear()
        yield Hub
    checkpoint._files_on_hub.cache_clear()
