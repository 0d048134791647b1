"""Editors and type checkers see every public function with its options."""

from tests.stub import FILE, formatted, stub


def test_the_stub_is_what_the_declarations_say():
    assert FILE.read_text(encoding="utf-8") == formatted(stub()), "run: python -m tests.stub"
