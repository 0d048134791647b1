"""The documentation is true: links work, and examples print what they show."""

import re
import shlex

import pytest
from typer.testing import CliRunner

from attnscope.cli import app
from tests.docs_examples import PAGES, ROOT, comparable, examples_of, llms_txt, output_of, write_files
from tests.docs_pictures import IMAGES, terminal_svg, text_of

EXAMPLES = {page: examples_of(page.read_text(encoding="utf-8")) for page in PAGES}
QUICK = ("README.md", "tensors.md")
"""The pages whose examples run by default."""
REWRITE = "run: python -m tests.docs_examples"


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[] if page.name in QUICK else pytest.mark.sweep)
        for page, examples in EXAMPLES.items()
        if examples and page.name != "commands.md"
    ],
    ids=lambda page: page.name,
)
def test_examples_print_what_they_show(monkeypatch, tmp_path, page):
    """Where a page shows a mistake, its line is shown; any other example must succeed."""
    monkeypatch.chdir(tmp_path)
    write_files(page.read_text(encoding="utf-8"))
    for command, expected in EXAMPLES[page]:
        exit_status, printed = output_of(command)
        assert comparable(printed) == comparable(expected), f"{command}\n{REWRITE}"
        wrong = "attnscope: error:" in expected
        failed = "✗" in expected or "FAILS" in expected or "--strict" in command
        failed |= command.startswith("attnscope compare minilm")  # with another model or text
        assert exit_status == (2 if wrong else 1 if failed else 0), command


def test_the_readme_is_short_and_shows_the_three_commands():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(readme.encode()) <= 8 * 1024
    assert len(readme.splitlines()) <= 150
    for command in ("sdpa --nq 30 --nk 50", "mha --d-feat 200 --heads 5", "bert --layer 0 --head 0"):
        assert f"attnscope {command}" in readme


def test_examples_of_the_readme_print_eight_lines_at_most():
    for command, printed in EXAMPLES[ROOT / "README.md"]:
        assert len(printed.splitlines()) <= 8, command


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)]+)\)", text):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), f"{page.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            anchors = [re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings]
            assert anchor in anchors, target


def test_the_cli_reference_is_up_to_date():
    from typer.cli import app as typer_cli

    command = ["attnscope.cli.app", "utils", "docs", "--name", "attnscope"]
    generated = CliRunner().invoke(typer_cli, command).stdout.strip()
    written = (ROOT / "docs" / "commands.md").read_text(encoding="utf-8").strip()
    assert written == generated, f"run: typer {shlex.join(command)} --output docs/commands.md"


def test_the_picture_of_a_terminal_shows_what_the_command_prints():
    svg = (IMAGES / "terminal.svg").read_text(encoding="utf-8")
    assert text_of(svg) == text_of(terminal_svg()), "run: python -m tests.docs_pictures"
    assert "http" not in svg.replace("http://www.w3.org/2000/svg", ""), "an image fetches nothing"
    assert len(svg) < 60_000


def test_the_screenshot_of_the_page_is_there_and_small():
    """What it shows is not compared: pixels depend on fonts, and most changes of the page do not show in it."""
    png = (IMAGES / "page.png").read_bytes()
    assert png.startswith(b"\x89PNG")
    assert len(png) < 150_000


def test_the_figure_of_an_audit_has_its_tokens():
    """What it measures is not compared: the last digits depend on the machine."""
    svg = (IMAGES / "audit.svg").read_text(encoding="utf-8")
    assert {"[CLS]", "cat", "sat", "influence in layer 0"} <= set(
        re.findall(r"<text[^>]*>([^<]*)<", svg)
    )
    assert len(svg) < 60_000


def test_llms_txt_is_up_to_date_and_lists_every_page():
    written = (ROOT / "llms.txt").read_text(encoding="utf-8")
    assert written == llms_txt(), REWRITE
    listed = {ROOT / path for path in re.findall(r"\]\(([^)]+)\)", written)}
    pages = {*ROOT.glob("docs/**/*.md"), *ROOT.glob("docs/**/*.ipynb")}
    lists = {ROOT / "docs/index.md", ROOT / "docs/learn/index.md"}
    assert listed == pages - lists


def test_every_page_is_in_the_navigation_of_the_site():
    docs = ROOT / "docs"
    listed = set(re.findall(r"(?:file|root): (\S+)", (docs / "_toc.yml").read_text(encoding="utf-8")))
    pages = [*docs.glob("**/*.md"), *docs.glob("**/*.ipynb")]
    assert listed == {str(page.relative_to(docs).with_suffix("")) for page in pages}


def test_the_site_begins_with_the_installation_of_the_readme():
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    (commands,) = re.findall(r"^```sh\n([\s\S]*?)\n```$", index, re.MULTILINE)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"\n{' && '.join(commands.splitlines())}\n" in readme


def test_every_public_name_is_in_the_python_api():
    import attnscope

    pages = "".join(page.read_text(encoding="utf-8") for page in (ROOT / "docs/api").glob("*.md"))
    described = set(re.findall(r"^\.\. auto\w+:: (\w+)", pages, re.MULTILINE))
    assert described >= set(attnscope.__all__)


def test_every_command_is_in_the_readme():
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for command in app.COMMANDS:
        assert f"`attnscope {command}`" in readme


def test_the_python_example_of_the_readme_runs(capsys, tmp_path, monkeypatch, with_torch):
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(import[\s\S]*?)^```$", readme, re.MULTILINE)
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    first, second = capsys.readouterr().out.splitlines()
    assert first.startswith("Trace(MultiheadAttention: ")
    assert first.endswith("no findings)")
    assert second == "(3, 30, 50)"
    assert (tmp_path / "heads.html").stat().st_size > 50_000


def test_every_key_of_a_record_is_documented():
    from dataclasses import fields

    from attnscope.document.result import Check, Finding, Stats
    from attnscope.formula.scaling.result import Scaling, ScalingRow
    from attnscope.model.files.result import Circuit, HeadWeights, WeightSlice
    from attnscope.observe.trace import Crash, Operand, Source, Step, Trace

    text = (ROOT / "docs" / "records.md").read_text(encoding="utf-8")
    kinds = (
        Trace,
        Step,
        Stats,
        Check,
        Finding,
        Source,
        Crash,
        Operand,
        HeadWeights,
        WeightSlice,
        Circuit,
        Scaling,
        ScalingRow,
    )
    for kind in kinds:
        for field in fields(kind):
            if field.repr:
                name = field.metadata.get("key", field.name)
                assert f"`{name}`" in text, f"{kind.__name__}.{field.name}"
