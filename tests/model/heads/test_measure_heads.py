"""`attnscope.measure_heads`: what `attnscope heads` does, for programs."""

import json
import logging
import random
import signal
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModel, AutoTokenizer

import attnscope
from attnscope import HeadTable, measure_heads
from attnscope.base.errors import FileError, ModelError, OptionError, OptionWarning, SizeError
from attnscope.model.heads.measurer import HeadMeasurer

TEXT = "The cat sat on the mat because it was tired."
SHORT = "the cat sat on the mat"
TEXTS = [
    "the cat sat on the mat because it was tired .",
    "a dog ran . the dog sat . the dog ran",
    "the cat",
    ". . a mat",
]


@pytest.fixture(scope="module")
def minilm():
    """The bundled model, and the same that its user has loaded, with its tokenizer."""
    from attnscope.model.files.checkpoint import find_checkpoint

    folder = find_checkpoint("minilm").folder
    return AutoModel.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def bert(saved):
    return saved("bert", max_position_embeddings=64)


def loaded(folder, **options):
    return AutoModel.from_pretrained(folder, **options), AutoTokenizer.from_pretrained(folder)


def numbers(table: HeadTable) -> dict:
    return {(row.stack, row.layer, row.head): (row.values, row.errors) for row in table.rows}


def are_near(table: HeadTable, other: HeadTable, tolerance: float = 1e-6) -> bool:
    """Whether two tables hold the same numbers."""
    ours, theirs = numbers(table), numbers(other)
    assert ours.keys() == theirs.keys()
    for place, kinds in ours.items():
        for mine, its in zip(kinds, theirs[place], strict=True):
            assert mine == {
                name: None if value is None else pytest.approx(value, abs=tolerance)
                for name, value in its.items()
            }
    return True


# The same as the command


FLAGS = {
    "metrics": ("--metrics", st.sampled_from(["entropy", "self,entropy", "first,previous,entropy"])),
    "layers": ("--layer", st.sampled_from(["0", "0-1", "1"])),
    "heads": ("--head", st.sampled_from(["1", "0-1"])),
    "sort": ("--sort", st.just("entropy")),
    "top": ("--top", st.integers(1, 5)),
    "weigh": ("--weigh", st.just("value")),
    "dtype": ("--dtype", st.sampled_from(["float64", "bfloat16"])),
}
SWITCHES = {
    "reverse": ("--reverse", True),
    "special": ("--no-special", False),
    "without_sink": ("--without-sink", True),
}


@pytest.mark.sweep
@pytest.mark.filterwarnings("ignore::attnscope.base.errors.OptionWarning")
@settings(max_examples=12, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_the_record_is_what_the_command_prints(attnscope, saved, data):
    folder = saved("bert", max_position_embeddings=64)
    options, flags = {}, []
    for name in data.draw(st.lists(st.sampled_from(sorted(FLAGS)), unique=True, max_size=3)):
        flag, values = FLAGS[name]
        options[name] = data.draw(values)
        flags += [flag, options[name]]
    for name in data.draw(st.lists(st.sampled_from(sorted(SWITCHES)), unique=True, max_size=2)):
        flag, options[name] = SWITCHES[name]
        flags.append(flag)
    printed = attnscope("heads", folder, "--text", SHORT, *flags, "--format", "json")
    assert printed.exit_status == 0, printed.err
    assert measure_heads(folder, SHORT, **options).to_dict() == printed.json


def test_the_record_of_a_corpus_is_what_the_command_prints(attnscope, bert, tmp_path):
    path = tmp_path / "c.jsonl"
    path.write_text("".join(json.dumps({"said": text}) + "\n" for text in [*TEXTS, "", "the dog"]))
    printed = attnscope("heads", bert, "--corpus", path, "--field", "said", "--format", "json")
    for given_as in ({"corpus": str(path)}, {"texts": path}):
        assert measure_heads(bert, **given_as, field="said").to_dict() == printed.json


@pytest.mark.sweep
def test_the_file_of_a_table_is_what_the_command_writes(attnscope, bert, tmp_path):
    table = measure_heads(bert, SHORT, sort="entropy", top=3, page=True)
    command = ["heads", bert, "--text", SHORT, "--sort", "entropy", "--top", 3]
    for suffix, format in (("csv", "csv"), ("md", "markdown")):
        table.save(tmp_path / f"ours.{suffix}")
        assert (tmp_path / f"ours.{suffix}").read_text() == attnscope(*command, "-f", format).out
    table.save(tmp_path / "ours.html")
    assert attnscope(*command, "--page", tmp_path / "theirs.html").exit_status == 0
    assert (tmp_path / "ours.html").read_text() == (tmp_path / "theirs.html").read_text()


def test_a_table_has_no_file_of_tensors_and_replaces_none(bert, tmp_path):
    table = measure_heads(bert, SHORT)
    with pytest.raises(FileError, match=r"HeadTable cannot be written as \.npz"):
        table.save(tmp_path / "x.npz")
    table.save(tmp_path / "x.csv")
    with pytest.raises(FileError, match="already exists"):
        table.save(tmp_path / "x.csv")
    table.save(tmp_path / "x.csv", force=True)


def test_a_data_frame_has_a_row_for_each_head_that_is_shown(bert):
    pytest.importorskip("pandas")
    table = measure_heads(bert, TEXTS, sort="self", top=4)
    frame = table.to_pandas()
    assert len(frame) == 4
    assert frame["self"].is_monotonic_decreasing
    assert "self_error" in frame


# What a program can give


def test_texts_of_a_program_are_measured_as_those_of_a_file(bert, tmp_path):
    path = tmp_path / "c.txt"
    path.write_text("\n".join([*TEXTS, ""]))
    table = measure_heads(bert, corpus=path)
    assert table.sequences == 4
    assert table.rows[0].errors["entropy"] is not None
    assert numbers(measure_heads(bert, TEXTS)) == numbers(table)


def test_a_generator_is_read_once_and_as_late_as_possible(bert, monkeypatch):
    from attnscope.model.heads import corpus

    monkeypatch.setattr(corpus, "WINDOW", 20)
    measured, read = [], []
    measure = HeadMeasurer.measure
    monkeypatch.setattr(
        HeadMeasurer, "measure", lambda self, batch: measured.append(batch) or measure(self, batch)
    )

    def texts():
        for text in TEXTS:
            read.append(len(measured))
            yield text

    assert measure_heads(bert, texts()).sequences == 4
    assert len(read) == 4
    assert read[-1] > 0


@pytest.mark.sweep
def test_objects_of_a_program_are_read_by_their_fields(bert, saved):
    rows = [{"said": text, "n": n} for n, text in enumerate(TEXTS)]
    assert numbers(measure_heads(bert, rows, field="said")) == numbers(measure_heads(bert, TEXTS))
    table = measure_heads(bert, [*rows, {"n": 5}, {"said": 3}], field="said")
    assert (table.sequences, table.skipped) == (4, 2)
    assert "line 5 of the corpus has no field 'said'; it has 'n'." in table.notices
    bart = saved("bart")
    pairs = [{"text": SHORT, "to": "a dog ran"}, {"text": "the cat", "to": "it was"}]
    table = measure_heads(bart, pairs, target_field="to")
    assert {row.stack for row in table.rows} == {"encoder", "decoder", "cross"}


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], "the corpus has no text that"),
        ([3], "text 1 of the corpus is a int"),
        (["a", b"b"], "text 2 of the corpus is a bytes"),
        (["a\0b"], "line 1 has a NUL character"),
        ("", "texts is empty"),
        (None, "there is no input"),
    ],
)
def test_what_is_no_text_is_told(bert, texts, message):
    with pytest.raises(OptionError, match=message):
        measure_heads(bert, texts)


@pytest.mark.sweep
def test_ids_tokens_layers_heads_and_metrics_may_be_lists(minilm, bert):
    some = measure_heads(bert, SHORT, layers=[0, 1], heads=range(1, 3), metrics=["self", "entropy"])
    same = measure_heads(bert, SHORT, layers="0,1", heads="1-2", metrics="self,entropy")
    assert some.to_dict() == same.to_dict()
    one = measure_heads(bert, SHORT, layers=1, heads=1)
    assert [(row.layer, row.head) for row in one.rows] == [(1, 1)]
    by_id = measure_heads("minilm", ids=[101, 1996, 4937, 102], layers=0)
    assert by_id.to_dict() == measure_heads("minilm", ids="101,1996,4937,102", layers=0).to_dict()
    by_token = measure_heads("minilm", tokens=["[CLS]", "the", "cat", "[SEP]"], layers=0)
    assert numbers(by_token) == numbers(by_id)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"layers": 9}, ModelError, "there is no layer 9"),
        ({"layers": "x"}, OptionError, "layers is 'x'"),
        ({"stack": "decoder"}, OptionError, "runs no decoder attention here"),
        ({"metrics": ["entropy", "nothing"]}, OptionError, "there is no metric 'nothing'"),
        ({"file": "x.txt"}, OptionError, "cannot be combined"),
        ({"top": 0}, OptionError, "top is 0, but takes numbers from 1"),
        ({"dtype": "int3"}, OptionError, "there is no dtype int3"),
        ({"memory": 1000}, SizeError, "needs at least"),
        ({"device": "meta"}, OptionError, "computes no values"),
        ({"tokenizer": object()}, OptionError, "tokenizer= is for a loaded model"),
        ({"checkpoint": "run.npz"}, OptionError, "checkpoint needs a corpus"),
    ],
)
def test_a_mistake_is_told_as_the_command_tells_it(bert, options, error, message):
    with pytest.raises(error, match=message):
        measure_heads(bert, SHORT, **options)


def test_an_option_without_effect_is_warned_of(bert):
    with pytest.warns(OptionWarning, match="reverse has no effect"):
        measure_heads(bert, SHORT, layers=0, reverse=True)


def test_nothing_is_printed_and_the_plan_is_logged(bert, caplog, capfd, every_plan):
    with caplog.at_level(logging.INFO, "attnscope"):
        measure_heads(bert, SHORT)
    [record] = caplog.records
    assert record.getMessage().startswith("8 tokens take ")
    assert capfd.readouterr() == ("", "")


def test_progress_is_told_with_its_share(bert):
    told = []
    measure_heads(bert, SHORT, progress=lambda doing, share=None: told.append((doing, share)))
    assert [doing for doing, _ in told if doing] == [
        f"loading {bert} …",
        f"running {bert} on a few tokens …",
        f"measuring {bert} …",
    ]
    told.clear()
    measure_heads(bert, TEXTS, progress=lambda doing, share=None: told.append((doing, share)))
    shares = [share for doing, share in told if doing and "texts ·" in doing]
    assert shares == sorted(shares)
    assert shares[-1] == 1
    assert told[-1] == (None, None)
    measure_heads(bert, iter(TEXTS), progress=lambda doing, share=None: told.append((doing, share)))
    assert all(share is None for _, share in told[-3:])


# A table


def test_a_head_is_found_by_its_place(bert, saved):
    table = measure_heads(bert, SHORT)
    assert (table[1, 2].layer, table[1, 2].head) == (1, 2)
    assert table["self", 1, 2] is table[1, 2]
    with pytest.raises(KeyError):
        table[9, 0]
    several = measure_heads(saved("bart"), SHORT, target="a dog ran")
    assert several["cross", 0, 1].stack == "cross"
    with pytest.raises(KeyError):
        several[0, 1]


def test_a_table_can_be_ranked_afterwards(bert):
    table = measure_heads(bert, SHORT)
    ranked = table.ranked("self", reverse=True, top=3)
    assert ranked.to_dict() == measure_heads(bert, SHORT, sort="self", reverse=True, top=3).to_dict()
    values = [head["self"] for head in ranked.to_dict()["heads"]]
    assert values == sorted(values)
    assert ranked.rows == table.rows
    with pytest.raises(KeyError):
        table.ranked("nothing")


def test_maps_are_kept_where_they_are_asked_for(bert):
    assert measure_heads(bert, SHORT).maps is None
    table = measure_heads(bert, SHORT, layers=[0, 1], heads=1, page=True)
    [maps] = table.maps
    assert [(each.layer, each.head) for each in maps.maps] == [(0, 1), (1, 1)]
    assert table.why_no_maps is None
    many = measure_heads(bert, TEXTS, page=True)
    assert (many.maps, many.why_no_maps) == ([], "each text of a corpus has its own maps")
    assert replace(table, maps=None) == table  # they are no part of what is compared


# Loaded models


@pytest.mark.few(1)
@pytest.mark.parametrize("family", ["bert", "llama", "bart", "xlnet"])
def test_a_loaded_model_is_measured_as_its_files(saved, family):
    folder = saved(family)
    model, tokenizer = loaded(folder)
    target = {"target": "a dog ran"} if family == "bart" else {}
    by_name = measure_heads(folder, SHORT, **target)
    assert are_near(measure_heads(model, SHORT, tokenizer=tokenizer, **target), by_name)


def state_of(model):
    """All that somebody may have set on a model."""
    return {
        "weights": [parameter.data_ptr() for parameter in model.parameters()],
        "values": [parameter.clone() for parameter in model.parameters()],
        "requires_grad": [parameter.requires_grad for parameter in model.parameters()],
        "dtype": model.dtype,
        "training": [module.training for module in model.modules()],
        "hooks": [
            list(hooks)
            for module in model.modules()
            for name, hooks in vars(module).items()
            if name.endswith("_hooks")
        ],
        "forward": [vars(module).get("forward") for module in model.modules()],
        "config": model.config.to_dict(),
        "attention": model.config._attn_implementation,
        "random": torch.get_rng_state(),
        "random of Python": random.getstate(),
        "random of numpy": str(np.random.get_state()),
        "gradients": torch.is_grad_enabled(),
        "handler": signal.getsignal(signal.SIGINT),
    }


def assert_unchanged(model, before):
    for name, value in state_of(model).items():
        if name in ("values", "random"):
            pairs = (
                zip(value, before[name], strict=True) if name == "values" else [(value, before[name])]
            )
            assert all(torch.equal(one, other) for one, other in pairs)
        else:
            assert value == before[name], name


@pytest.mark.parametrize("function", ["attention_maps", "attention_steps", "measure_heads", "mask"])
def test_a_model_that_draws_leaves_the_random_state_of_its_caller(saved, function):
    model, tokenizer = loaded(saved("bert"))

    def draws(*_):
        random.random()
        np.random.rand()
        torch.rand(1)

    model.register_forward_pre_hook(draws)
    before = state_of(model)
    name = "texts" if function == "measure_heads" else "text"
    getattr(attnscope, function)(model, **{name: "the cat sat"}, tokenizer=tokenizer)
    assert_unchanged(model, before)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("family", "texts", "attention"),
    [
        ("bert", SHORT, "sdpa"),
        ("bert", TEXTS, "eager"),
        ("llama", SHORT, "eager"),
        ("xlnet", TEXTS, None),
    ],
    ids=str,
)
def test_a_loaded_model_stays_as_it_is(saved, family, texts, attention):
    options = {} if attention is None else {"attn_implementation": attention}
    model, tokenizer = loaded(saved(family), **options)
    model.train()
    model.register_forward_hook(lambda *_: None)
    before = state_of(model)
    measure_heads(model, texts, tokenizer=tokenizer, dtype="float64", page=True)
    assert_unchanged(model, before)


@pytest.mark.parametrize(
    ("error", "texts"), [(RuntimeError("broken"), SHORT), (KeyboardInterrupt(), TEXTS)], ids=str
)
def test_a_loaded_model_stays_as_it_is_after_an_exception(bert, monkeypatch, texts, error):
    model, tokenizer = loaded(bert)
    model.train()
    before = state_of(model)
    batches = []

    def attend(self, batch, *_):
        batches.append(batch)
        raise error

    monkeypatch.setattr(HeadMeasurer, "_attend", attend)
    with pytest.raises((RuntimeError, ModelError, KeyboardInterrupt)):
        measure_heads(model, texts, tokenizer=tokenizer)
    assert batches
    assert_unchanged(model, before)


def test_a_loaded_model_without_a_tokenizer_is_told(bert):
    model, _ = loaded(bert)
    with pytest.raises(ModelError, match="without a tokenizer"):
        measure_heads(model, SHORT)


# Runs over a corpus


def stop_at(monkeypatch, at):
    """Let Ctrl-C come in place of the measurement of one batch, counted from 0."""
    measure, seen = HeadMeasurer.measure, []

    def measured(self, batch):
        if len(seen) == at:
            monkeypatch.setattr(HeadMeasurer, "measure", measure)
            signal.raise_signal(signal.SIGINT)
        seen.append(batch)
        return measure(self, batch)

    monkeypatch.setattr(HeadMeasurer, "measure", measured)


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", [list, iter])
def test_a_run_that_is_interrupted_returns_what_it_has_and_goes_on(bert, tmp_path, monkeypatch, kind):
    options = {"checkpoint": tmp_path / "run.npz", "batch_tokens": 12}
    stop_at(monkeypatch, 2)
    table = measure_heads(bert, kind(TEXTS), **options)
    assert table.partial
    assert 0 < table.sequences < 4
    rest = measure_heads(bert, kind(TEXTS), **options)
    assert (rest.partial, rest.sequences) == (False, 4)
    assert numbers(rest) == numbers(measure_heads(bert, TEXTS, batch_tokens=12))


def test_an_interruption_before_anything_was_measured_is_raised(bert, monkeypatch):
    stop_at(monkeypatch, 0)
    with pytest.raises(KeyboardInterrupt):
        measure_heads(bert, TEXTS)


def test_a_resumed_run_over_other_texts_is_refused(bert, tmp_path):
    measure_heads(bert, TEXTS, checkpoint=tmp_path / "run.npz")
    with pytest.raises(OptionError, match="is from a run with size of the corpus 4"):
        measure_heads(bert, TEXTS[:3], checkpoint=tmp_path / "run.npz")


def test_a_run_that_cannot_be_kept_is_returned_with_the_reason(bert, tmp_path, monkeypatch):
    from attnscope.model.heads import corpus_run

    def full(*arguments, **options):
        raise FileError("the disk is full.")

    monkeypatch.setattr(corpus_run, "save_state", full)
    table = measure_heads(bert, TEXTS, checkpoint=tmp_path / "run.npz")
    assert table.sequences == 4
    assert str(table.unsaved) == "the disk is full."


def test_a_corpus_may_be_measured_in_another_thread(bert):
    found = []
    thread = threading.Thread(target=lambda: found.append(measure_heads(bert, TEXTS)))
    thread.start()
    thread.join()
    assert numbers(found[0]) == numbers(measure_heads(bert, TEXTS))


def test_a_file_is_one_text(bert, tmp_path):
    path = tmp_path / "text.txt"
    path.write_text(SHORT)
    assert numbers(measure_heads(bert, file=str(path))) == numbers(measure_heads(bert, SHORT))


def test_token_ids_need_no_tokenizer(minilm):
    """Which tokens are separators or punctuation is not known then; all else is as with a tokenizer."""
    model, tokenizer = minilm
    ids = [1996, 4937, 2938, 1012]
    table = measure_heads(model, ids=ids)
    whole = measure_heads(model, ids=ids, tokenizer=tokenizer)
    assert set(whole.metrics) - set(table.metrics) == {"separator", "punctuation"}
    for name in table.metrics:
        assert table[3, 7].values[name] == whole[3, 7].values[name], name
    assert any("separator and punctuation are not measured" in each for each in table.notices)
    for options in ({"metrics": "punctuation"}, {"sort": "separator"}):
        with pytest.raises(OptionError, match="cannot be measured: the model has no tokenizer"):
            measure_heads(model, ids=ids, **options)
