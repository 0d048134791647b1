"""A notebook of the documentation in a real JupyterLab: its pictures render, and can be clicked."""

from pathlib import Path

import pytest

from tests.browser.jupyterlab import jupyterlab

PATH = Path(__file__).parents[2] / "docs" / "notebooks" / "real_model.ipynb"


@pytest.mark.sweep
def test_a_notebook_in_jupyterlab(chromium, tmp_path):
    import nbformat  # for three seconds, which every worker would wait
    from nbclient import NotebookClient

    notebook = nbformat.read(PATH, as_version=4)
    NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
    with jupyterlab(tmp_path, {"real_model.ipynb": notebook}, theme="Dark") as address:
        page = chromium.new_page(viewport={"width": 1300, "height": 1000}, color_scheme="light")
        page.set_default_timeout(60_000)
        page.goto(f"{address}/lab/tree/real_model.ipynb")
        output = page.locator(".jp-RenderedHTMLCommon .attnscope")

        weights = output.nth(0)
        weights.wait_for()
        assert weights.locator("svg.histogram").count() == 8
        name = weights.get_by_text("encoder.layer.2.attention.self.query.weight")
        assert not name.is_visible()
        weights.locator("summary", has_text="W_Q").click()
        assert name.is_visible()
        ground = weights.evaluate("element => getComputedStyle(element).backgroundColor")
        assert ground == "rgb(22, 25, 29)"  # JupyterLab is dark, and the browser prefers light

        frame = page.frame_locator("iframe[sandbox=allow-scripts]")
        frame.locator("#plot[data-shown]").wait_for()
        assert frame.locator("#heads [role=gridcell]").count() == 72
        frame.locator("#heads [role=gridcell]").nth(30).click()
        assert frame.locator("#heading").inner_text() == "Layer 2, head 6"
        frame.locator("#plot[data-shown='self 2 6 map']").wait_for()
        look = frame.locator("#look").evaluate("element => getComputedStyle(element).backgroundColor")
        assert look == ground

        grids = page.locator(".attnscope:has(figure)").first
        grids.scroll_into_view_if_needed()
        assert grids.locator("figure").count() == 13
        titles = page.locator(".attnscope .grid i").first.get_attribute("title")
        assert titles.startswith("L0 H0: ")
        page.close()
