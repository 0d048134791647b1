"""The notebooks of the documentation, executed by a real kernel."""

from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def test_there_are_notebooks():
    assert {"own_code.ipynb", "real_model.ipynb"} <= {path.name for path in NOTEBOOKS}


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
@pytest.mark.sweep
def test_a_notebook_runs_from_top_to_bottom(path, tmp_path):
    import nbformat  # for three seconds, which every worker would wait
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=300, kernel_name="python3", resources=where).execute()
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    shown = [each["data"].get("text/html", "") for each in outputs if "data" in each]
    assert sum('<div class="attnscope' in html for html in shown) >= 2
    warnings = [each["text"] for each in outputs if each.get("name") == "stderr"]
    assert not warnings


@pytest.mark.few(1)
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_without_outputs(path):
    import nbformat

    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    for cell in notebook.cells:
        assert not cell.get("outputs")
        assert cell.get("execution_count") is None
        assert cell["metadata"] == {}
    assert {*notebook.metadata} <= {"kernelspec", "language_info"}
