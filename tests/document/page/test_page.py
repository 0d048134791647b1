"""The page as text: its content, and its size."""

import json
import re
from base64 import b64decode, b64encode
from dataclasses import replace
from hashlib import sha256
from html.parser import HTMLParser

import numpy as np
import pytest

from attnscope.base.errors import SizeError
from attnscope.document.page.page import MAX_CANVAS, model_name, page_html
from attnscope.document.result import Check
from attnscope.model.heads.result import HeadRow, HeadTable
from attnscope.model.maps.result import AttentionMap, AttentionMaps
from attnscope.model.run.tokens import Picture, Token
from tests.document.page.unpacking import unpacked

EVIL = "</script><img src=x onerror=alert(1)>"


def stack(queries, keys=None, *, layers=1, heads=2, name="self", model="a model", **more):
    queries = [each if isinstance(each, Token) else Token(each) for each in queries]
    keys = queries if keys is None else [Token(each) for each in keys]
    rng = np.random.default_rng(1)
    maps = []
    for layer in range(layers):
        for head in range(heads):
            drawn = rng.random((len(queries), len(keys))).astype(np.float32)
            maps.append(AttentionMap(layer, head, head, drawn / drawn.sum(-1, keepdims=True)))
    return AttentionMaps(model, name, layers, heads, heads, queries, keys, maps, **more)


def html_of(*stacks, layer=0, head=0, title="a title", query=None):
    return page_html(list(stacks), layer=layer, head=head, query=query, title=title)


class Elements(HTMLParser):
    """Every element with its attributes, and the text of scripts and styles."""

    def __init__(self, html):
        super().__init__()
        self.found, self.texts, self.open = [], {}, None
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        self.found.append((tag, dict(attributes)))
        self.open = tag, dict(attributes).get("id")

    def handle_endtag(self, tag):
        self.open = None

    def handle_data(self, data):
        if self.open:
            self.texts[self.open] = self.texts.get(self.open, "") + data


def data_in(html):
    return json.loads(Elements(html).texts["script", "data"])


def test_tokens_heads_and_what_is_shown_first_are_in_the_data():
    data = data_in(html_of(stack(["[CLS]", " cat"], layers=2, heads=3), layer=1, head=2, query=1))
    (one,) = data["stacks"]
    assert [token["text"] for token in one["queries"]] == ["[CLS]", "cat"]
    assert [(each["layer"], each["head"]) for each in one["heads"]] == [
        (0, 0),
        (0, 1),
        (0, 2),
        (1, 0),
        (1, 1),
        (1, 2),
    ]
    assert data["first"] == {"layer": 1, "head": 2, "query": 1, "sink": True}


def test_every_head_has_its_weights_in_an_element_of_its_own():
    html = html_of(stack(["a", "b"], layers=2, heads=3), stack(["c"], ["d", "e"], name="cross"))
    ids = [attributes.get("id") for tag, attributes in Elements(html).found if tag == "script"]
    assert ids == ["data", *(f"weights-0-{i}" for i in range(6)), "weights-1-0", "weights-1-1", None]


def test_queries_that_are_the_keys_are_said_once():
    assert data_in(html_of(stack(["a", "b"])))["stacks"][0]["keys"] is None
    (cross,) = data_in(html_of(stack(["a"], ["b", "c"], name="cross")))["stacks"]
    assert [token["text"] for token in cross["keys"]] == ["b", "c"]


def test_the_key_of_a_query_is_the_one_at_its_position():
    def of(*args, **more):
        (one,) = data_in(html_of(stack(*args, **more)))["stacks"]
        return one["firstQuery"], one["ownKeys"]

    assert of(["a", "b"]) == (0, True)
    assert of(["c", "d"], ["a", "b", "c", "d"], first_query=2) == (2, True)
    assert of(["c", "d"], ["a", "b", "c", "d"]) == (0, False)
    assert of(["b"], ["a", "b", "c"], name="cross", first_query=1) == (1, False)


def test_what_is_said_of_tokens_is_in_the_data():
    (one,) = data_in(
        html_of(stack([Token("a", segment=1), Token("b", special=True), Token("c", generated=True)]))
    )["stacks"]
    assert one["queries"] == [
        {"text": "a", "segment": 1},
        {"text": "b", "special": True},
        {"text": "c", "generated": True},
    ]


HOSTILE = (
    EVIL,
    "</title><svg onload=alert(1)>",
    "</style><style>*{}",
    '" onmouseover="alert(1)" x=\'y\'',
    "' autofocus onfocus='alert(1)",
    "<!--<script>",
    "--> ]]> <![CDATA[ <?x ?>",
    "{{ 7 * 7 }} {% for %} {# #}",
    "&lt;img&gt; &quot; &#60;script&#62;",
    "a\0b\x1b[31m\u2028\u2029\u202e\x85\r\n\t",
    "/",
    "a",
    " ",
    "javascript:alert(1)//<base href=x>",
    "\udc9f<b>",
)


@pytest.mark.few(3)
@pytest.mark.parametrize("hostile", HOSTILE)
def test_a_page_of_hostile_names_has_the_elements_of_a_page_of_harmless_ones(hostile):
    def page(text):
        text_of_token = [text, f" {text}", f"{text}{text}"]
        maps = stack(
            [Token(each, segment=i) for i, each in enumerate(text_of_token)],
            model=text,
            name=text,
            notices=[text, f"{text} of {text}"],
            checks=[Check(text, 1.0, 2.0, False, text), Check(text, None, None, None, text)],
        )
        metrics = {text: text, f"{text} 2": f"“{text}”"}
        rows = [HeadRow(text, 0, head, dict.fromkeys(metrics, 0.5), {}) for head in (0, 1)]
        rows = [replace(row, errors=dict.fromkeys(metrics)) for row in rows]
        table = HeadTable(text, metrics, 1, 3, {text: (1, 2)}, rows, notices=[text])
        html = page_html([maps], layer=0, head=0, title=f"{text} · attention", heads=table, metric=text)
        return html, Elements(html)

    harmless, expected = page("harmless")
    html, elements = page(hostile)
    names = [(tag, list(attributes)) for tag, attributes in elements.found]
    assert names == [(tag, list(attributes)) for tag, attributes in expected.found]
    constant = [
        [value for name, value in attributes.items() if name not in ("title", "content")]
        for _, attributes in elements.found
    ]
    assert hostile not in {value for values in constant for value in values} - {"a", " ", "/"}
    assert html.count("<!--") == harmless.count("<!--")
    written = hostile.encode("utf-8", "replace").decode()
    assert data_in(html)["stacks"][0]["name"] == hostile
    titles = [attributes["title"] for tag, attributes in elements.found if "title" in attributes]
    assert written in titles


def test_maps_that_no_browser_draws_are_refused():
    most = stack(["q"], ["k"] * MAX_CANVAS, heads=1)
    assert len(data_in(html_of(most))["stacks"][0]["keys"]) == MAX_CANVAS
    with pytest.raises(SizeError, match="at most 16,384 queries and keys") as refused:
        html_of(stack(["q"], ["k"] * (MAX_CANVAS + 1), heads=1))
    assert 'pool="max"' in refused.value.hint


def test_no_name_token_or_notice_becomes_markup():
    evil = stack(
        [EVIL, "&", '"'],
        model=EVIL,
        notices=[EVIL],
        checks=[Check(EVIL, None, None, None, EVIL)],
        name=EVIL,
    )
    html = html_of(evil, stack(["x"], name=EVIL), title=EVIL)
    elements = Elements(html)
    assert not [tag for tag, _ in elements.found if tag == "img"]
    assert not [
        attributes
        for _, attributes in elements.found
        if any(name.startswith("on") for name in attributes)
    ]
    assert data_in(html)["stacks"][0]["queries"][0]["text"] == EVIL
    assert "<" not in elements.texts["script", "data"]


def test_the_policy_forbids_all_but_this_script_and_this_style():
    html = html_of(stack(["a"]))
    elements = Elements(html)
    (policy,) = [
        a["content"] for tag, a in elements.found if a.get("http-equiv") == "Content-Security-Policy"
    ]
    script = re.findall(r"<script>(.*?)</script>", html, flags=re.S)
    style = re.findall(r"<style>(.*?)</style>", html, flags=re.S)
    assert len(script) == len(style) == 1
    hashes = [b64encode(sha256(text.encode()).digest()).decode() for text in (script[0], style[0])]
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src 'sha256-{hashes[0]}'",
        f"style-src 'sha256-{hashes[1]}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_nothing_is_loaded_and_no_text_is_ever_read_as_markup():
    html = html_of(stack(["a"]))
    for _, attributes in Elements(html).found:
        assert not {"src", "href", "style"} & attributes.keys()
    for forbidden in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "eval(",
        "new Function",
        "http://",
        "https://",
        "url(",
    ):
        assert forbidden not in html


def test_model_sizes_notices_and_checks_are_shown():
    checks = [
        Check("transformers", 2.5e-7, 1e-5, True),
        Check("another", 0.5, 1e-5, False),
        Check("third", None, None, None, "undecided"),
    ]
    html = html_of(
        stack(
            ["a", "b", "c"], layers=3, heads=2, model="org/model", checks=checks, notices=["Cut at 3."]
        )
    )
    shown = re.sub(r"\s+", " ", re.sub(r"<[^>]*>", " ", html.split("<script")[0]))
    for text in (
        "org/model",
        "3 layers",
        "2 heads",
        "3 tokens",
        "Cut at 3.",
        "2.5e-07",
        "1e-05",
        "yes",
        "no",
        "undecided",
    ):
        assert text in shown


def test_shared_heads_of_K_and_V_are_counted():
    grouped = stack(["a"], heads=2)
    grouped.n_kv_head = 1
    assert "2 heads, 1 for K and V" in html_of(grouped)
    assert data_in(html_of(grouped))["stacks"][0]["shared"] is True


@pytest.mark.few(1)
@pytest.mark.parametrize(("n", "fine"), [(3, True), (1100, False)])
def test_the_largest_error_is_stated_and_true(n, fine):
    one = stack([f"token {i}" for i in range(n)])
    html = html_of(one)
    texts = Elements(html).texts
    error = max(
        np.abs(unpacked(texts["script", f"weights-0-{i}"], n, n, fine=fine) - each.attention).max()
        for i, each in enumerate(one.maps)
    )
    stated = float(re.search(r"stored to within ([\d.e-]+):", html)[1])
    assert stated == pytest.approx(error, rel=0.05), "it has two digits"


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("minilm", "minilm"),
        ("google/vit-base", "google/vit-base"),
        ("/home/me/secret/vit", "vit"),
        ("/vit", "vit"),
        ("../vit", "vit"),
        ("./vit", "vit"),
        ("~/vit", "vit"),
        ("work/secret/vit/", "vit"),
        ("..", ".."),
        ("/", "/"),
    ],
)
def test_a_model_is_called_by_its_name_on_the_hub_or_its_folder_alone(model, name):
    assert model_name(model) == name


def test_a_page_that_is_mailed_does_not_say_where_its_model_lay():
    folder = "/home/me/secret/vit"
    one = stack(["a"], model=folder, notices=[f"{folder} does something more"])
    html = html_of(one, stack(["b"], model=folder, name="other"), title=f"{folder} · attention")
    assert "secret" not in html
    assert "<title>vit · attention</title>" in html
    assert "<li>vit does something more</li>" in html
    assert html.count("<b><bdi>vit</bdi></b>") == 2


def test_a_picture_is_a_data_url():
    pictured = stack(["[CLS]", "0,0", "0,1"], picture=Picture(1, 2, 1, b"\x89PNG bytes"))
    picture = data_in(html_of(pictured))["stacks"][0]["picture"]
    assert (picture["rows"], picture["columns"], picture["first"]) == (1, 2, 1)
    head, _, content = picture["url"].partition(",")
    assert head == "data:image/png;base64"
    assert b64decode(content) == b"\x89PNG bytes"


def test_a_name_with_undecodable_bytes_can_be_written():
    html_of(stack(["a"], model="caf\udce9"), title="caf\udce9").encode("utf-8")


def test_stacks_without_maps_are_left_out():
    empty = stack(["a"], name="empty")
    empty.maps = []
    assert [each["name"] for each in data_in(html_of(empty, stack(["b"], name="full")))["stacks"]] == [
        "full"
    ]


@pytest.mark.parametrize(("n", "kibibytes"), [(13, 150), (128, 3 * 1024)])
def test_a_page_of_72_heads_is_small(n, kibibytes):
    assert len(html_of(stack([f"token {i}" for i in range(n)], layers=6, heads=12))) < kibibytes * 1024
