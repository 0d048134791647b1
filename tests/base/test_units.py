import pytest

from attnscope.base.units import bytes_text, count_text, counted, flops_text, parse_amount


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1.0 KiB"),
        (18000, "17.6 KiB"),
        (1024**2 - 1, "1.0 MiB"),
        (17_179_869_184, "16.0 GiB"),
        (2**115, "34359738368.0 YiB"),
    ],
)
def test_bytes_are_in_binary_units(count, text):
    assert bytes_text(count) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, ""), (999, "999"), (1_152_000, "1.15 M"), (999_999, "1 M"), (4 * 10**18, "4 E")],
)
def test_counts_are_in_decimal_units(count, text):
    assert count_text(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 FLOP"), (96, "96 FLOP"), (1_152_000, "1.15 MFLOP")])
def test_operations_have_their_unit(count, text):
    assert flops_text(count) == text


@pytest.mark.parametrize(("count", "text"), [(0, "0 tokens"), (1, "1 token"), (1152, "1,152 tokens")])
def test_one_of_something_is_told_as_one(count, text):
    assert counted(count, "token") == text


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        (100, 100),
        ("100B", 100),
        ("1GB", 10**9),
        ("1.5 TB", 15 * 10**11),
        ("1G", 2**30),
        ("1g", 2**30),
        (" 2 GiB ", 2**31),
        ("1.5 KiB", 1536),
        ("0.25k", 256),
        ("80MiB", 80 * 2**20),
    ],
)
def test_gb_is_decimal_and_g_and_gib_are_binary(text, n_bytes):
    assert parse_amount(text) == n_bytes


@pytest.mark.parametrize(
    "text",
    ["", *"G -2G 2P 1e9 2,5G .5G 2.G all nan inf".split(), "2 G B", "2G 3M", "9" * 400],
)
def test_what_is_no_amount_has_none(text):
    assert parse_amount(text) is None
