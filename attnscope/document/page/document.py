"""A page of a result: what a notebook shows, and perhaps a script that explains it under the pointer."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from attnscope.base.text import printable
from attnscope.document.page.page import json_in_html, policy_hash


def document(title: str, content: str, *, script: str = "", data: Any = None) -> str:
    """Return a page that makes no network requests, and runs no script but its own.

    `content` is HTML with its style; `script` names a file in this package, whose script reads `data` as
    JSON.
    """
    from markupsafe import escape

    code = files(__package__).joinpath(script).read_text(encoding="utf-8") if script else ""
    allowed = f"script-src '{policy_hash(code)}'; " if script else ""
    policy = (
        f"default-src 'none'; {allowed}style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
    )
    own = ""
    if script:
        own = (
            f'<script type="application/json" id="data">{json_in_html(data)}</script>\n'
            f"<script>{code}</script>\n"
        )
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta name="color-scheme" content="light dark">\n<title>{escape(title)}</title>\n'
        f"</head>\n<body>\n{content}\n{own}</body>\n</html>\n"
    )


def frame(page: str, title: str, note: str = "") -> str:
    """Return a frame that shows a page in a notebook.

    The frame may run scripts and nothing else. It has no origin of its own, so that it reads neither the
    notebook's page nor its storage, and the policy of the page forbids the network.
    """
    from markupsafe import escape

    content = page.replace("&", "&amp;").replace("'", "&#39;")  # in single quotation marks
    return (
        (f'<p class="soft">{escape(note)}</p>\n' if note else "")
        + f'<iframe class="page" title="{escape(printable(title))}" sandbox="allow-scripts"'
        ' referrerpolicy="no-referrer"'
        " onload=\"contentWindow.postMessage(getComputedStyle(this).colorScheme, '*')\""
        f" srcdoc='{content}'></iframe>"
    )
