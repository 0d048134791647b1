"""What a page costs, beside what BertViz's costs. Run: python -m tests.benchmarks.page [--long]

The bundled model reads documentation cut to 13, 128 and 512 tokens: 6 layers × 12 heads. For each, the size of
the page, the time to make it, and, in Chromium: until it is opened and painted, and from a click on a head
to its map. BertViz's head view of the same attention is made in turn with it where `bertviz` and `ipython`
are installed (at 512 tokens only with --long: it takes 5 GiB and most of a minute). It judges nothing:
these are figures for docs/benchmarks.md.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from playwright.sync_api import Browser, sync_playwright
from transformers import AutoModel, AutoTokenizer

from attnscope.base.units import bytes_text
from attnscope.document.page.page import page_html
from attnscope.model.files.checkpoint import find_checkpoint
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token

TEXT = Path(__file__).parents[2] / "docs" / "architecture.md"
CLICKS = 24
CLICK = """([layer, head]) => new Promise((done) => {
  const plot = document.getElementById("plot"), began = performance.now();
  const watch = new MutationObserver(() => {
    if (!plot.dataset.shown.startsWith(`self ${layer} ${head} `)) return;
    watch.disconnect();
    const painted = new MessageChannel();  // a task after the next frame is a task after its paint
    painted.port1.onmessage = () => done(performance.now() - began);
    requestAnimationFrame(() => painted.port2.postMessage(0));
  });
  watch.observe(plot, { attributes: true });
  document.querySelector(`#heads [aria-label="Layer ${layer}, head ${head}"]`).click();
})"""


def attention_of(n: int) -> tuple[list[str], list[Any]]:
    """The tokens and the attention of each layer, of the bundled model on `n` tokens."""
    folder = find_checkpoint("minilm").folder
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    encoded = tokenizer(TEXT.read_text("utf-8"), truncation=True, max_length=n, return_tensors="pt")
    with torch.no_grad():
        layers = model(**encoded, output_attentions=True).attentions
    return tokenizer.convert_ids_to_tokens(encoded.input_ids[0].tolist()), list(layers)


def ours(tokens: list[str], layers: list[Any]) -> str:
    axis = [Token(token) for token in tokens]
    maps = [
        AttentionMap(layer, head, head, heads[0, head].numpy())
        for layer, heads in enumerate(layers)
        for head in range(12)
    ]
    stack = AttentionMaps("minilm", "self", 6, 12, 12, axis, axis, maps)
    return page_html([stack], layer=0, head=0, title="benchmark")


def bertviz(tokens: list[str], layers: list[Any]) -> str:
    from bertviz import head_view

    return head_view(layers, tokens, html_action="return").data


def timed(make: Callable[..., str], *arguments: Any) -> tuple[float, str]:
    began = time.perf_counter()
    made = make(*arguments)
    return time.perf_counter() - began, made


def in_the_browser(browser: Browser, html: str, folder: Path) -> tuple[float, list[float]]:
    """Seconds until a page is opened and painted, and milliseconds from each click to its map."""
    path = folder / "page.html"
    path.write_text(html, "utf-8")
    page = browser.new_page()
    began = time.perf_counter()
    page.goto(path.as_uri())
    page.wait_for_selector("#plot[data-shown]")
    opened = time.perf_counter() - began
    places = [(i % 6, i % 12) for i in range(1, CLICKS + 1) if i % 12]
    clicks = [page.evaluate(CLICK, list(place)) for place in dict.fromkeys(places)]
    page.close()
    return opened, clicks


def main() -> None:
    parser = argparse.ArgumentParser(description="What a page costs.")
    parser.add_argument("--long", action="store_true", help="BertViz at 512 tokens too")
    long = parser.parse_args().long
    beside = find_spec("bertviz") and find_spec("IPython")
    print(
        "| tokens | page | made in | opened in | a click, median | a click, longest | BertViz | made in | sizes |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    with sync_playwright() as playwright, tempfile.TemporaryDirectory() as folder:
        browser = playwright.chromium.launch(
            executable_path=os.environ.get("CHROMIUM") or shutil.which("chromium"),
            args=["--headless", "--no-sandbox", "--disable-gpu"],
        )
        ours(*attention_of(13))  # warm: imports
        for n in (13, 128, 512):
            tokens, layers = attention_of(n)
            seconds, html = timed(ours, tokens, layers)
            opened, clicks = in_the_browser(browser, html, Path(folder))
            row = [n, bytes_text(len(html)), f"{seconds:.2f} s", f"{opened:.2f} s"]
            row += [f"{statistics.median(clicks):.0f} ms", f"{max(clicks):.0f} ms"]
            if beside and (n < 512 or long):
                theirs, their_html = timed(bertviz, tokens, layers)
                row += [
                    bytes_text(len(their_html)),
                    f"{theirs:.2f} s",
                    f"**1/{len(their_html) / len(html):.0f}**",
                ]
            else:
                row += ["–", "–", "–"]
            print("| " + " | ".join(map(str, row)) + " |", flush=True)
        browser.close()


if __name__ == "__main__":
    main()
