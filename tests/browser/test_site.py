"""The site of the documentation: it builds without a warning, needs no network, and its search finds."""

import functools
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from playwright.sync_api import Browser

ROOT = Path(__file__).parents[2]
PAGES = ("index", "your-code", "learn/variants/masks", "api/functions", "notebooks/own_code", "commands")

pytestmark = pytest.mark.sweep


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "html"
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-n", "-q", "docs", str(folder)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.fixture
def address(request: pytest.FixtureRequest, site: Path) -> Iterator[str]:
    """Where the site is: on a server of this machine, or on disk."""
    if request.param == "disk":
        yield site.as_uri()
        return
    handler = functools.partial(SimpleHTTPRequestHandler, directory=site)
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.mark.parametrize("address", ["disk", "server"], indirect=True)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_pages_fetch_nothing_from_elsewhere_and_search_works(
    chromium: Browser, address: str, theme: str
) -> None:
    page = chromium.new_page(color_scheme=theme)
    elsewhere: list[str] = []
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))

    def refuse(route, request):
        elsewhere.append(request.url)
        route.abort()

    page.route(lambda url: not url.startswith((address, "data:", "blob:", "about:")), refuse)
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        assert page.locator("h1").first.is_visible()
        brightness = page.evaluate(
            "parseInt(getComputedStyle(document.body).backgroundColor.match(/\\d+/)[0])"
        )
        assert (brightness > 200) == (theme == "light")
    page.goto(f"{address}/search.html?q=softcap")
    found = page.locator("#search-results a", has_text="soft cap").first
    found.wait_for()
    assert not elsewhere
    # Browsers let no script read pages from disk: there, results of the search have no excerpts.
    assert set(errors) <= ({"Failed to fetch"} if address.startswith("file:") else set())
    page.close()


@pytest.mark.parametrize("address", ["disk"], indirect=True)
def test_pages_fit_a_telephone(chromium: Browser, address: str) -> None:
    """Long lines scroll inside of their block; the page itself is as wide as the screen."""
    page = chromium.new_page(viewport={"width": 390, "height": 844})
    for name in PAGES:
        page.goto(f"{address}/{name}.html")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, name
    page.close()


def test_llms_txt_leads_to_pages_of_the_site(site: Path) -> None:
    links = re.findall(r"\]\(([^)]+)\)", (site / "llms.txt").read_text(encoding="utf-8"))
    assert len(links) > 20
    assert all((site / link).is_file() for link in links)
