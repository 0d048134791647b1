"""A real browser: Chromium without a network; pages may neither log errors nor make requests."""

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

from attnscope.document.page.page import page_html
from attnscope.model.heads.result import HeadRow, HeadTable
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Token
from tests.browser.chromium import path_of_chromium

SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Browser]:
    """Start the browser."""
    path = path_of_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=SWITCHES)
        yield browser
        browser.close()


@dataclass
class Opened:
    """A page in the browser, with actions and queries that several tests need."""

    page: Page
    troubles: list[str]

    def text(self, selector: str) -> str:
        return self.page.locator(selector).inner_text()

    def see(self, expression: str) -> Any:
        return self.page.evaluate(expression)

    def until(self, condition: str) -> None:
        """Wait until something is so. (Playwright's own way evaluates text in the page, which the policy forbids.)"""
        for _ in range(200):
            if self.see(condition):
                return
            self.page.wait_for_timeout(25)
        pytest.fail(f"it never came true: {condition}")

    def wait_for(self, layer: int, head: int, view: str = "map", stack: str = "self") -> None:
        """Wait until a head is painted."""
        self.page.wait_for_selector(f'#plot[data-shown="{stack} {layer} {head} {view}"]')

    def wait_for_metrics(self, layer: int, head: int, metric: str, stack: str = "self") -> None:
        """Wait until the metrics of a head are listed, and the overview shows one of them."""
        self.page.wait_for_selector(f'#measures[data-shown="{stack} {layer} {head} {metric}"]')

    def head(self, layer: int, head: int) -> Any:
        return self.page.locator(f'#heads [aria-label^="Layer {layer}, head {head}"]')

    def cell(self, row: int, column: int) -> tuple[float, float]:
        """Return the position of a visible cell of the map."""
        box = self.page.locator("#canvas").bounding_box()
        left, above, size = self.see("[looks.map.left, looks.map.above, looks.map.cell]")
        scrolled = self.see("[by('plot').scrollLeft, by('plot').scrollTop]")
        return (
            box["x"] + left + (column + 0.5) * size - scrolled[0],
            box["y"] + above + (row + 0.5) * size - scrolled[1],
        )

    def hover(self, row: int, column: int) -> tuple[str, str, str]:
        """Return the query, the key and the weight shown beside the pointer."""
        self.page.mouse.move(*self.cell(row, column))
        assert self.page.locator("#tip").is_visible()
        return self.text("#tip-query"), self.text("#tip-key"), self.text("#tip-weight")

    def click(self, row: int, column: int) -> None:
        self.page.mouse.click(*self.cell(row, column))

    def colour(self, x: float, y: float) -> tuple[int, ...]:
        """Return the colour of the canvas at a point of the page."""
        return tuple(
            self.see(
                """([x, y]) => { const box = canvas.getBoundingClientRect();
                return [...context.getImageData((x - box.x) * devicePixelRatio, (y - box.y) * devicePixelRatio, 1, 1).data]; }""".join(
                    ["(", f")([{x}, {y}])"]
                )
            )
        )

    def strongest(self) -> list[tuple[str, ...]]:
        """Return the rows of the list at the right."""
        rows = self.page.locator("#strongest tbody tr").all()
        return [
            tuple(cell.inner_text().replace("\n", " ").strip() for cell in row.locator("td").all())
            for row in rows
        ]


@pytest.fixture
def open_page(chromium: Browser, tmp_path: Path) -> Iterator[Callable[..., Opened]]:
    """Return a function that writes a page and opens it: `open_page(stack, fragment="layer=1&head=2", dark=True)`."""
    troubles: list[str] = []
    contexts = []

    def heard(message: ConsoleMessage) -> None:
        if "willReadFrequently" not in message.text:  # it is these tests that read the canvas so often
            troubles.append(f"console: {message.text}")

    def opened(
        *stacks: AttentionMaps,
        fragment: str = "",
        dark: bool = False,
        forced: bool = False,
        width: int = 1300,
        height: int = 900,
        density: float = 1,
        title: str = "a title",
        query: int | None = None,
        heads: HeadTable | None = None,
        metric: str | None = None,
        without_sink: bool = False,
        beside: bool = False,
        ready: bool = True,
    ) -> Opened:
        path = tmp_path / "page.html"
        html = page_html(
            list(stacks),
            layer=0,
            head=0,
            query=query,
            title=title,
            heads=heads,
            metric=metric,
            without_sink=without_sink,
            beside=beside,
        )
        path.write_text(html, encoding="utf-8")
        context = chromium.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            forced_colors="active" if forced else "none",
            device_scale_factor=density,
            offline=True,
        )
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(10_000)
        page.on("console", heard)
        page.on("pageerror", lambda error: troubles.append(f"error: {error}"))
        page.on(
            "dialog", lambda dialog: (troubles.append(f"dialog: {dialog.message}"), dialog.dismiss())
        )
        context.on(
            "request",
            lambda request: (
                request.url.startswith(("file:", "data:", "blob:")) or troubles.append(request.url)
            ),
        )
        page.goto(path.as_uri() + (f"#{fragment}" if fragment else ""))
        if ready:
            page.wait_for_selector("#plot[data-shown]" if heads is None else "#measures[data-shown]")
        return Opened(page, troubles)

    yield opened
    for context in contexts:
        context.close()
    assert troubles == []


@pytest.fixture
def make_table() -> Callable[..., HeadTable]:
    """Create metrics of heads, all different, or None for (stack, layer, head, metric) in `without`."""

    def made(
        stacks: dict[str, tuple[int, int]] | None = None,
        *,
        metrics: dict[str, str] | None = None,
        without: Collection[tuple[str, int, int, str]] = (),
        **more: Any,
    ) -> HeadTable:
        layers = stacks or {"self": (2, 3)}
        meanings = metrics or {
            "entropy": "how spread it is, in nats",
            "previous": "weight to the token before",
            "distance": "mean distance from query to key, in tokens",
        }
        rng = np.random.default_rng(5)
        rows = []
        for stack, (n_layer, n_head) in layers.items():
            for layer in range(n_layer):
                for head in range(n_head):
                    known = [name for name in meanings if (stack, layer, head, name) not in without]
                    values = dict.fromkeys(meanings) | {
                        name: float(rng.uniform(0.1, 2)) * (40 if name == "distance" else 1)
                        for name in known
                    }
                    errors = {name: value and value * 0.0123 for name, value in values.items()}
                    rows.append(HeadRow(stack, layer, head, values, errors))
        return HeadTable("a model", meanings, 3, 99, layers, rows, **more)

    return made


@pytest.fixture
def make_stack() -> Callable[..., AttentionMaps]:
    """Return a function that creates maps of any tokens: random ones, or those passed by layer and head."""

    def made(
        queries: list[Token | str],
        keys: list[Token | str] | None = None,
        *,
        layers: int = 2,
        heads: int = 3,
        given: dict[tuple[int, int], np.ndarray] | None = None,
        stack: str = "self",
        **more: Any,
    ) -> AttentionMaps:
        query_tokens, key_tokens = (
            [Token(each) if isinstance(each, str) else each for each in axis]
            for axis in (queries, queries if keys is None else keys)
        )
        rng = np.random.default_rng(7)
        n_kv_head = more.pop("n_kv_head", heads)
        maps = []
        for layer in range(layers):
            for head in range(heads):
                drawn = rng.random((len(query_tokens), len(key_tokens))) ** 3
                attention = (given or {}).get((layer, head), drawn / drawn.sum(-1, keepdims=True))
                kv_head = head * n_kv_head // heads
                maps.append(AttentionMap(layer, head, kv_head, attention.astype(np.float32)))
        return AttentionMaps(
            "a model", stack, layers, heads, n_kv_head, query_tokens, key_tokens, maps, **more
        )

    return made
