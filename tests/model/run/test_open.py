"""A run of a model: its device, what it needs in memory, and what is restored after it."""

from __future__ import annotations

import random

import pytest
import torch
from transformers.utils import logging

from attnscope.base.errors import ModelError, SizeError
from attnscope.model.heads.metrics import METRICS
from attnscope.model.run.memory_plan import N_METRIC
from attnscope.model.run.open import open_model


def test_a_run_is_planned_before_the_weights_are_loaded_as_after():
    with open_model("minilm", dtype="bfloat16") as run:
        with run.loading():
            before = run.needs(1, 50, kept=1000, pairs=3)
            assert run.model is None
            run.load()
        after = run.needs(1, 50, kept=1000, pairs=3)
        assert run.model.dtype == torch.bfloat16
    assert before == after
    assert before.kept == 1000


def test_what_does_not_fit_is_refused_before_it_is_loaded(monkeypatch):
    with open_model("minilm", memory="1M") as run, run.loading():
        needs = run.needs(1, 500)
        with pytest.raises(SizeError, match=r"minilm needs at least .* but its limit is 1.0 MiB"):
            run.plan(needs, "a shorter text")
        monkeypatch.setattr("attnscope.base.process.devices.free_memory", lambda _: None)
        run.check_fits(needs, "reading", "a shorter text")
        assert run.model is None


def test_random_numbers_and_warnings_are_as_before():
    logging.set_verbosity_info()
    random.seed(3)
    expected = random.Random(3).random()
    with open_model("minilm") as run, run.loading():
        run.load()
        random.random()
        torch.rand(2)
    assert random.random() == expected
    assert logging.get_verbosity() == logging.INFO
    logging.set_verbosity_warning()


def test_a_model_that_is_not_there_is_not_opened(tmp_path):
    with pytest.raises(ModelError), open_model(tmp_path / "none"):
        pass


def test_all_metrics_have_room():
    assert len(METRICS) == N_METRIC
