"""`rich.print` shows a result as its command does."""

import io

import pytest
from rich.console import Console

import attnscope as library
from attnscope.document.console import Terminal
from attnscope.document.terminal import print_document
from tests.document.every_result import every_result

pytestmark = pytest.mark.usefixtures("on_command_line")


def printed_by_rich(result, **options):
    file = io.StringIO()
    Console(file=file, **options).print(result)
    return file.getvalue()


def test_rich_prints_what_the_command_prints(attnscope):
    trace = library.compute("sdpa", nq=3, nk=4, dk=5, dv=6)
    command = attnscope("sdpa", "--nq", 3, "--nk", 4, "--dk", 5, "--dv", 6)
    assert printed_by_rich(trace, width=200) == command.out


@pytest.mark.parametrize("colours", ["truecolor", "256", "standard", None])
@pytest.mark.parametrize("width", [60, 140])
@pytest.mark.parametrize("name", every_result())
@pytest.mark.pairwise
def test_rich_prints_the_same_lines_and_colours_as_a_terminal(name, width, colours):
    result, file = every_result()[name], io.StringIO()
    options = {"width": width, "color_system": colours, "force_terminal": True}
    print_document(result.document(), Terminal(file=file, **options))
    assert printed_by_rich(result, **options) == file.getvalue()
    assert file.getvalue()


def test_text_from_data_stays_escaped(tmp_path):
    trace = library.dry_run("sdpa")
    trace.steps[0].name = "[red]Q\x1b[31m\n"
    shown = printed_by_rich(trace, width=100, force_terminal=True, color_system=None)
    assert "[red]Q\\x1b[31m\\n" in shown
