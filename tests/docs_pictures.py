"""The pictures of the documentation: a command in a terminal, the page of attention maps, an audit.

python -m tests.docs_pictures        draws them again, into docs/images/
"""

from __future__ import annotations

import contextlib
import html
import io
import os
import re
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import TerminalTheme
from rich.text import Text

from tests.docs_examples import ROOT, colourful_output_of, write_files

IMAGES = ROOT / "docs" / "images"
COOKBOOK = ROOT / "docs" / "cookbook.md"
TRACE = "attnscope trace my_attn.py:Attention --init d_feat=200 --init n_head=5 --input x=n_batch:8,n:32,d_feat"
"""What the terminal shows: a recipe of the cookbook."""

WIDTH = 92
COLOURS = "484f58 ff7b72 57d278 f0b93c 58a6ff d2a8ff 56d4dd c8d0d9 8b949e ffa198 78e696 ffd264 79c0ff e2beff 78e4ec ffffff"
"""Black, red, green, yellow, blue, magenta, cyan, white, and the same again, bright."""

RGB = [(int(c[:2], 16), int(c[2:4], 16), int(c[4:], 16)) for c in COLOURS.split()]
THEME = TerminalTheme((22, 27, 34), (230, 237, 243), RGB[:8], RGB[8:])
"""Dark, with a background of its own, so that the picture looks the same on light and dark pages."""

SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" aria-label="attnscope trace in a terminal">
<style>
.{unique_id}-matrix {{ font: {char_height}px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono",
"Liberation Mono", monospace; line-height: {line_height}px; white-space: pre }}
{styles}
</style>
<defs>{lines}</defs>
<rect fill="#161b22" width="100%" height="100%" rx="8"/>
<g fill="#484f58"><circle cx="24" cy="22" r="7"/><circle cx="46" cy="22" r="7"/><circle cx="68" cy="22" r="7"/></g>
<g transform="translate({terminal_x}, {terminal_y})">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""
"""Rich's own format without its fonts, which it fetches, and without its title."""


def terminal_svg() -> str:
    """Run the command, and draw what a terminal shows."""
    here = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        write_files(COOKBOOK.read_text(encoding="utf-8"))
        _, out, _ = colourful_output_of(TRACE, columns=WIDTH)
        os.chdir(here)
    console = Console(record=True, width=WIDTH + 1, file=io.StringIO(), force_terminal=True)
    typed = TRACE.replace(" --input", " \\\n      --input")
    console.print(Text.assemble(("$ ", "bold green"), typed))
    console.print(Text.from_ansi(out.rstrip()))
    return console.export_svg(theme=THEME, code_format=SVG, unique_id="t", font_aspect_ratio=0.6)


def text_of(svg: str) -> str:
    """Return the text of a drawn terminal, without spaces and rules, whose number depends on widths."""
    texts = re.findall(r"<text[^>]*>([^<]*)</text>", svg)
    return "".join("".join(html.unescape(text) for text in texts).replace("─", "").split())


def take_screenshot(path: Path) -> None:
    """Open the page of the bundled model's attention in Chromium, and save what it looks like."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    import attnscope

    text = "The cat sat on the [MASK] because it was tired."
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        page_file = Path(folder) / "map.html"
        attnscope.attention_maps("minilm", text, layers="all", heads="all", page=True).save(page_file)
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM", "/usr/bin/chromium"),
            args=["--no-sandbox", "--disable-gpu"],
        )
        page = browser.new_page(viewport={"width": 1280, "height": 800}, color_scheme="light")
        page.goto(f"{page_file.as_uri()}#layer=1&head=8")
        page.wait_for_selector('#plot[data-shown^="self "]')
        png = page.screenshot()
        browser.close()
    # 256 colours: a third of the bytes, and the same to the eye.
    Image.open(io.BytesIO(png)).convert("RGB").quantize(256).save(path, optimize=True)


def draw_audit(path: Path) -> None:
    """Draw an encoder that should be causal."""
    import attnscope

    attnscope.audit("minilm", "The cat sat on the mat.", causal=True).save(path, force=True)


if __name__ == "__main__":
    with contextlib.chdir(ROOT):
        print("audit.svg", file=sys.stderr)
        draw_audit(IMAGES / "audit.svg")
        print("terminal.svg", file=sys.stderr)
        (IMAGES / "terminal.svg").write_text(terminal_svg(), encoding="utf-8")
        print("page.png", file=sys.stderr)
        take_screenshot(IMAGES / "page.png")
