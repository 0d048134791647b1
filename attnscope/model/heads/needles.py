"""Find the heads that copy what a text holds into an answer: a retrieval score for every head.

A needle is a part of a text. While the model writes its answer, a head retrieves a token if its
strongest key is in the needle and is the token that is written. Rows of weights are computed for written
tokens alone, and only the positions of their strongest keys are kept, so a text may be long.

Source: Wu et al. 2024, "Retrieval Head Mechanistically Explains Long-Context Factuality"
(arXiv:2404.15574), section 2, and their code. As in the code, a token that is copied twice counts twice,
and trials in which the model does not find the needle do not count. Differences: the needle is where its
characters are (there, the first stretch of tokens of which 90 % are the needle's); the answer ends where
the model ends it (there, at a line's end, too); the needle is found if the answer has more than half of
its tokens (there, of its words, by their stems); a question follows the text as it is, on a line of its
own (there, within a prompt).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import FileError, ModelError, OptionError, class_name, warn_unused
from attnscope.base.process.progress import Progress, stage
from attnscope.base.spelling import spelled
from attnscope.base.text import shortened
from attnscope.base.units import counted
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.heads.metrics import RETRIEVAL, retrieval
from attnscope.model.heads.options import MeasuredHeads, MeasurementRun, Needles, TextOptions
from attnscope.model.heads.result import HeadTable
from attnscope.model.heads.selection import Selection
from attnscope.model.heads.statistics import Accumulator
from attnscope.model.run.text_file import checked_fields, read_json_lines

if TYPE_CHECKING:
    import torch

    from attnscope.model.run.written_rows import WrittenRows

TOKENS = 50  #: the most tokens of an answer unless `--generate` says otherwise, as in the paper's code

FIELDS = {
    "text": ("text",),
    "context": ("text",),
    "needle": ("text", "list of numbers"),
    "question": ("text",),
    "answer": ("text",),
}
EXAMPLE = '{"text": "… the key is 7481 …", "needle": "7481", "question": "The key is"}'


@dataclass(frozen=True)
class Trial:
    """A text with a needle."""

    text: str
    needle: tuple[int, int]  #: the first and the end of the needle's characters in it
    question: str  #: what follows the text, on a line of its own; empty: nothing
    answer: str | None  #: the answer that the model is made to write; None: it writes its own
    name: str

    @property
    def prompt(self) -> str:
        """All that the model reads before it answers."""
        return f"{self.text}\n{self.question}" if self.question else self.text


def read_trials(needles: Needles) -> list[Trial]:
    """Read texts with needles from a .jsonl file, or from objects."""
    if isinstance(needles, str | Path):
        name, lines = spelled("needle", needles), read_json_lines(needles, EXAMPLE)
    else:
        name, lines = "needle=", [(f"needle {i}", each) for i, each in enumerate(needles, 1)]
    if not lines:
        raise OptionError(f"{name} has no trials.", hint=EXAMPLE)
    return [_trial(fields, where) for where, fields in lines]


def _trial(fields: Any, where: str) -> Trial:
    """Return a trial from its fields; `where` names it in messages."""
    fields = checked_fields(fields, where, FIELDS, EXAMPLE, error=FileError)
    if ("text" in fields) == ("context" in fields):
        count = "both" if "text" in fields else "neither"
        raise FileError(f"{where} has {count} of the fields text and context.", hint=EXAMPLE)
    text, answer = fields.get("text", fields.get("context")), fields.get("answer")
    if not text or not text.strip() or answer == "":
        raise FileError(f"{where} has an empty {'answer' if answer == '' else 'text'}.", hint=EXAMPLE)
    span = _span(text, fields.get("needle"), where)
    return Trial(text, span, fields.get("question", ""), answer, where)


def _span(text: str, needle: Any, where: str) -> tuple[int, int]:
    """Return the characters of a needle, which is a part of the text or a pair of positions."""
    if isinstance(needle, str) and needle.strip():
        first = text.find(needle)
        if first < 0:
            raise FileError(f"{where} has no needle {shortened(needle)!r} in its text.")
        if text.find(needle, first + 1) >= 0:
            raise FileError(
                f"{where} has the needle {shortened(needle)!r} more than once in its text.",
                hint=f'"needle": [{first}, {first + len(needle)}], by its characters',
            )
        return first, first + len(needle)
    if isinstance(needle, list | tuple) and len(needle) == 2 and all(type(i) is int for i in needle):
        first, end = needle
        if 0 <= first < end <= len(text) and text[first:end].strip():
            return first, end
        raise FileError(
            f"{where} has needle [{first}, {end}], but its text has characters 0 to {len(text)}."
        )
    raise FileError(f"{where} has no needle: a part of its text, or [first, end].", hint=EXAMPLE)


@dataclass(frozen=True)
class _Read:
    """A trial as tokens."""

    inputs: dict[str, Any]
    ids: list[int]  #: the ids of the text and the question
    needle: range  #: the positions of the needle's tokens
    answer: list[int] | None


@dataclass
class _Strongest:
    """The positions of the strongest keys, by layer and query: `n_head` each."""

    of: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict)
    heads: dict[int, list[int]] = field(default_factory=dict)

    def add(self, rows: WrittenRows) -> None:
        """Keep the strongest keys of some rows; heads of a layer may come in several parts."""
        import torch

        keys = (rows.weights.argmax(-1) + rows.first_key).cpu()
        known = self.heads.setdefault(rows.layer, [])
        known += [head for head in rows.heads if head not in known]
        for i, query in enumerate(rows.queries):
            place = (rows.layer, query)
            parts = [self.of[place]] if place in self.of else []
            self.of[place] = torch.cat([*parts, keys[:, i]])


def measure_needles(
    model: Any,
    needles: Needles,
    inputs: TextOptions,
    selection: Selection,
    run: MeasurementRun,
    order: MeasuredHeads,
    progress: Progress,
) -> HeadTable:
    """Score every head by how much of a needle it copies, over one trial or many."""
    from attnscope.model.run.load import load_tokenizer
    from attnscope.model.run.open import open_model
    from attnscope.model.run.tokenize import check_reads

    trials = read_trials(needles)
    writes = any(trial.answer is None for trial in trials)
    warn_unused([(inputs.generate and not writes, "generate", "the file gives every answer")])
    options: dict[str, Any] = {"dtype": run.dtype, "tokenizer": run.tokenizer, "progress": progress}
    with open_model(model, run.device, **options) as opened:
        checkpoint = opened.checkpoint
        with opened.loading():
            check_reads(checkpoint, opened.config, "text")
            stack = _stack(checkpoint, opened.config, selection.stack)
            opened.check_device()
            tokenizer = load_tokenizer(checkpoint)
            if run.device_map is None:
                opened.check_weights_fit()
            loaded = opened.load(device_map=run.device_map, generates=True)
        job = _Job(checkpoint, loaded, tokenizer, stack, selection, inputs.generate or TOKENS)
        for i, trial in enumerate(trials, 1):
            with stage(progress, f"running {checkpoint.name} on text {i} of {len(trials)} …"):
                job.measure(trial)
    if not job.accumulator.sequences:
        raise OptionError(
            f"no trial counts: {'; '.join(job.notices)}",
            hint='"answer": "…" in a line makes the model write it',
        )
    rows = [
        row
        for row in job.accumulator.rows([RETRIEVAL], {stack: [RETRIEVAL]})
        if selection.heads is None or row.head in selection.heads
    ]
    return HeadTable(
        model=checkpoint.name,
        metrics={RETRIEVAL: (retrieval.__doc__ or "").split("\n")[0].rstrip(".")},
        sequences=job.accumulator.sequences,
        tokens=job.accumulator.tokens,
        layers=job.accumulator.layers,
        rows=rows,
        notices=job.notices,
        sort=order.sort,
        reverse=order.reverse,
        top=order.top,
    )


def _stack(checkpoint: Checkpoint, config: Any, stack: str | None) -> str:
    """Return the stack whose keys are the text and whose queries write."""
    from attnscope.model.run.layers import has_towers

    text = "text" if has_towers(config) else "self"
    only = "cross" if config.is_encoder_decoder else text
    if stack not in (None, only):
        raise OptionError(
            f"{spelled('stack', stack)} of {checkpoint.name} does not read the needle while it writes.",
            hint=spelled(stack=only),
        )
    return only


@dataclass
class _Job:
    """Let a model write the answers of trials, one by one, and add up the scores of its heads."""

    checkpoint: Checkpoint
    model: Any
    tokenizer: Any
    stack: str
    selection: Selection
    n: int  #: the most tokens of an answer
    accumulator: Accumulator = field(default_factory=Accumulator)
    #: how many trials did not count, by the reason
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def notices(self) -> list[str]:
        """What was left out, and why."""
        total = self.accumulator.sequences + self.left_out.total()
        return [
            f"{n:,} of {counted(total, 'trial')} left out: {why}." for why, n in self.left_out.items()
        ]

    def measure(self, trial: Trial) -> None:
        """Run the model on a trial, and add the scores of its heads, or leave it out."""
        import torch

        from attnscope.model.run.tokenize import max_tokens
        from attnscope.model.run.written_rows import RecordedRows, write

        read = self._read(trial)
        most = max_tokens(self.model.config)
        n = self.n if read.answer is None else len(read.answer)
        decodes = self.model.config.is_encoder_decoder
        if most is not None and (len(read.ids) if decodes else len(read.ids) + n) > most:
            self.left_out[f"longer than the {most:,} tokens that the model takes"] += 1
            return
        strongest = _Strongest()
        text = write(
            self.checkpoint,
            self.model,
            read.inputs,
            strongest.add,
            RecordedRows(self.stack, self.selection.layers, self.selection.heads),
            n=n,
            answer=read.answer,
        )
        if read.answer is None and not _is_found([read.ids[i] for i in read.needle], text.ids):
            self.left_out["the answer has no more than half of the needle's tokens"] += 1
            return
        sums = self.accumulator
        sums.sequences += 1
        sums.tokens += len(read.ids) + len(text.ids)
        sums.layers[self.stack] = (text.n_layer, max(text.n_head.values()))
        ids, written = torch.tensor(read.ids), torch.tensor(text.ids)
        queries = range(text.first - 1, text.first - 1 + len(text.ids))
        for layer, heads in sorted(strongest.heads.items()):
            keys = torch.stack([strongest.of[layer, query] for query in queries], 1)
            scores = torch.zeros(1, text.n_head[layer], 1, dtype=torch.float64)
            scores[0, heads, 0] = retrieval(keys, written, ids, read.needle)
            sums.heads[self.stack, layer] = text.n_head[layer]
            sums.add((self.stack, layer), scores.numpy(), torch.ones_like(scores).numpy())

    def _read(self, trial: Trial) -> _Read:
        """Tokenize a trial, and find the tokens that have characters of the needle."""
        from attnscope.model.run.tokenize import batch_of, encoded

        tokenizer, name = self.tokenizer, self.checkpoint.name
        if not tokenizer.is_fast:
            raise ModelError(
                f"the tokenizer of {name} ({class_name(tokenizer)}) does not say which characters a"
                " token stands for, so where the needle is is not known.",
                hint="a fast tokenizer: tokenizer.json beside the weights",
            )
        encoding = encoded(tokenizer, {"text": trial.prompt}, return_offsets_mapping=True, verbose=False)
        first, end = trial.needle
        ids, offsets = encoding["input_ids"], encoding["offset_mapping"]
        inside = [i for i, (a, b) in enumerate(offsets) if a < b and a < end and b > first]
        if not inside:
            raise ModelError(f"the needle of {trial.name} has no tokens in {name}.")
        answer = None
        if trial.answer is not None:
            answer = encoded(tokenizer, {"text": trial.answer}, add_special_tokens=False)["input_ids"]
        names = [each for each in tokenizer.model_input_names if each in encoding]
        inputs = {each: batch_of(encoding[each]).to(self.model.device) for each in names}
        return _Read(inputs, ids, range(inside[0], inside[-1] + 1), answer)


def _is_found(needle: list[int], written: list[int]) -> bool:
    """Check that an answer has more than half of the needle's tokens (ROUGE-1's recall; Lin 2004)."""
    return 2 * (Counter(needle) & Counter(written)).total() > len(needle)
