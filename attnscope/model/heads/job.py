"""Load a model, and measure its heads on a text or a corpus."""

from __future__ import annotations

from math import ceil
from typing import Any

from attnscope.base.errors import ModelError, OptionError
from attnscope.base.process.progress import stage
from attnscope.base.spelling import spelled
from attnscope.base.units import counted
from attnscope.model.heads.batches import Encoded, Reader, TextBatch
from attnscope.model.heads.corpus import Corpus, IterableCorpus
from attnscope.model.heads.corpus_run import CorpusRun
from attnscope.model.heads.measurer import HeadMeasurer
from attnscope.model.heads.metrics import METRICS, NEED_TOKENS
from attnscope.model.heads.options import MeasuredHeads, MeasurementRun, TextOptions
from attnscope.model.heads.processes import ProcessGroup
from attnscope.model.heads.result import HeadTable
from attnscope.model.heads.resume import fingerprint
from attnscope.model.heads.selection import Selection
from attnscope.model.heads.statistics import Accumulator
from attnscope.model.run.load import load_tokenizer, tokenizer_of
from attnscope.model.run.open import OpenedModel
from attnscope.model.run.read_inputs import check_ids, ids_of, notices_of_ids
from attnscope.model.run.tokenize import (
    check_reads,
    encoded,
    max_tokens,
    notice_of_unknown,
    notices_of_unknown,
)

MANY_UNKNOWN = 0.01
"""The least share of unknown tokens for a notice about a corpus; in a single text, each counts."""


class MeasurementJob:
    """Load a model, and measure its heads on a text or a corpus.

    Args:
        group: the processes that share the run.
        opened: the model, whose weights are not loaded yet.
    """

    def __init__(
        self,
        inputs: TextOptions,
        selection: Selection,
        run: MeasurementRun,
        order: MeasuredHeads,
        group: ProcessGroup,
        opened: OpenedModel,
    ) -> None:
        self.inputs, self.selection, self.run, self.order = inputs, selection, run, order
        self.group, self.opened, self.checkpoint = group, opened, opened.checkpoint
        self.name, self.progress = opened.name, opened.progress

    def load(self, text: str) -> None:
        """Load the model, if there is memory to measure it on the text."""
        opened, run = self.opened, self.run
        with opened.loading():
            try:
                check_reads(self.checkpoint, opened.config, "text")
            except ModelError as error:
                raise ModelError(error.message, hint="a model that reads text") from error
            self._check_decodes(opened.config)
            opened.check_device()
            tokenizer = (tokenizer_of if self.inputs.has_ids else load_tokenizer)(self.checkpoint)
            if tokenizer is None:
                self.selection = self.selection.without(NEED_TOKENS, self.order.sort)
            if run.device_map is None:
                self._check_memory(tokenizer, text)
            loaded = opened.load(device_map=run.device_map)
        self.reader = Reader(loaded, tokenizer, self.inputs.longest)
        selection = self.selection
        self.measurer = HeadMeasurer(
            self.checkpoint,
            loaded,
            selection.metrics,
            layers=selection.layers,
            stack=selection.stack,
            special=selection.special,
            without_sink=selection.without_sink,
            weigh=selection.weigh,
        )

    def measure_text(self, text: str) -> HeadTable:
        """Measure the heads on one text, or on token ids in its place."""
        inputs, reader = self.inputs, self.reader
        tokenized = self._tokenize(text)
        lengths = {inputs.name: tokenized.length, spelled("target"): tokenized.target_length}
        limit = reader.limit
        cut = {source: n for source, n in lengths.items() if limit is not None and n > limit}
        for source, n in cut.items():
            if not inputs.truncate:
                raise OptionError(
                    f"{source} is {n:,} tokens long, but the model takes at most {limit:,}.",
                    hint=f"{spelled(truncate=True)}; or {spelled(corpus='FILE')}, which reads a"
                    " file line by line",
                )
        batch = reader.batch([tokenized])
        with stage(self.progress, f"running {self.name} on a few tokens …"):
            self._probe(batch)
        self._plan(1, batch.longest)
        with stage(self.progress, f"measuring {self.name} …"):
            accumulator = self.measurer.measure(batch)
        table = self._table(accumulator)
        table.notices += [
            f"{name} was truncated from {n:,} tokens to {limit:,}." for name, n in cut.items()
        ]
        notices_of = notices_of_ids if inputs.has_ids else notices_of_unknown
        table.notices += notices_of(reader.tokenizer, tokenized.inputs["input_ids"], inputs.name)
        if reader.tokenizer is None:
            table.notices.append(
                f"{' and '.join(NEED_TOKENS)} are not measured: which tokens they mean is not known"
            )
        else:
            table.notices += notices_of_unknown(
                reader.tokenizer, tokenized.target or [], spelled("target")
            )
        return table

    def measure_corpus(self, corpus: Corpus | IterableCorpus) -> HeadTable:
        """Measure the heads on the texts of a corpus."""
        reader, group = self.reader, self.group
        tokens = self._batch_tokens(str(self.measurer.model.device))
        assert reader.limit is not None
        self._plan(ceil(tokens / reader.limit), reader.limit, padded=tokens > 1)
        corpus_run = CorpusRun(
            self.measurer,
            reader,
            corpus,
            group,
            tokens=tokens,
            probe=self._probe,
            progress=self.progress,
        )
        settings = self._settings(corpus, tokens)
        rank = group.first_mismatch(settings["weights"])
        if rank is not None:
            raise ModelError(
                f"process {rank} has different weights for {self.name} than process 0.",
                hint="a folder shared by all machines, or the same revision on each",
            )
        accumulator = corpus_run.run(self.run.file, settings)
        n_layer = {stack: n for stack, (n, _) in accumulator.layers.items()}
        self.selection.check(self.name, n_layer, accumulator.heads)
        state, table = corpus_run.state, self._table(accumulator)
        table.partial, table.skipped = not state.done, state.skipped + accumulator.empty
        table.unsaved = corpus_run.unsaved
        if state.first_skipped is not None:
            line, why = state.first_skipped
            table.notices.append(f"line {line} of {corpus} {why}.")
        table.notices += self._notices_of_corpus(corpus, accumulator)
        return table

    def _check_decodes(self, config: Any) -> None:
        """Raise an OptionError if there is a target, but the model has no decoder beside an encoder."""
        targets = {"target": self.inputs.target, "target_field": self.inputs.target_field}
        options = [option for option, value in targets.items() if value is not None]
        if options and not config.is_encoder_decoder:
            raise OptionError(
                f"{spelled(options[0])} is for encoder-decoder models, and {self.name}"
                f" ({config.model_type}) is not one."
            )

    def _check_memory(self, tokenizer: Any, text: str) -> None:
        """Raise a SizeError unless the weights and the measurement fit into memory together."""
        inputs, opened = self.inputs, self.opened
        limits = [limit for limit in (max_tokens(opened.config), inputs.longest) if limit is not None]
        n_batch, n_tokens = 1, max(1, min(limits, default=1))
        if inputs.has_corpus:
            n_batch = ceil(self._batch_tokens(opened.device) / n_tokens)
        else:
            ids = (
                ids_of(self.checkpoint, inputs.ids, inputs.tokens)
                if inputs.has_ids
                else encoded(tokenizer, {"text": [text]}, verbose=False)["input_ids"][0]
            )
            n_tokens = min([len(ids), *limits])
        needs = opened.needs(n_batch, n_tokens, **self._memory_options)
        opened.check_fits(needs, "measuring", self._hint)

    @property
    def _memory_options(self) -> dict[str, Any]:
        """The parts of the selection that memory depends on, as fields of `Measured`."""
        selection = self.selection
        weighed = selection.weigh is not None
        rescaled = selection.without_sink or weighed
        return {"pairs": selection.n_pairs, "rescaled": rescaled, "weighed": weighed}

    @property
    def _hint(self) -> str:
        """The hint if there is too little memory."""
        if self.inputs.has_corpus:
            return (
                f"{spelled(max_length='N')} with {spelled(batch_tokens='N')}, fewer of each; or"
                f" more {spelled('memory')}, if available"
            )
        return (
            f"a shorter text: {spelled(truncate=True, max_length='N')}; or more"
            f" {spelled('memory')}, if available"
        )

    def _batch_tokens(self, device: str) -> int:
        """Return the number of tokens in a batch of a corpus."""
        return self.run.batch_tokens or (16384 if "cuda" in device else 4096)

    def _tokenize(self, text: str) -> Encoded:
        """Tokenize the text, or take the token ids instead of it."""
        inputs = self.inputs
        targets = None if inputs.target is None else [inputs.target]
        if inputs.has_ids:
            ids = ids_of(self.checkpoint, inputs.ids, inputs.tokens)
            check_ids(self.checkpoint, self.measurer.model.config, ids, inputs.name)
            return self.reader.read_ids(ids, targets)
        tokenized = self.reader.read([text], targets)
        if not tokenized:
            raise OptionError(f"{inputs.name} has no tokens in {self.name}.", hint="another text")
        return tokenized[0]

    def _plan(self, n_batch: int, n_tokens: int, *, padded: bool = False) -> None:
        """Plan the memory, log the plan, and set the measurer's part of it."""
        measurer, opened = self.measurer, self.opened
        opened.model = measurer.model  # which is loaded again if it has to be eager
        measurer.memory = opened.budget
        kept = 0
        if measurer.why_eager is not None:  # all maps, and the temporary tensors of one layer's
            n_map = sum(measurer.heads.values()) + 2 * max(measurer.heads.values())
            kept = 4 * n_batch * n_tokens**2 * n_map
        needs = opened.needs(n_batch, n_tokens, kept=kept, padded=padded, **self._memory_options)
        plan = opened.plan(needs, self._hint)
        measurer.blockwise.block_bytes, measurer.store.keep = plan.block, plan.keep
        if self.group.is_first:
            plan.report()

    def _probe(self, batch: TextBatch) -> None:
        """Check how the model attends, and that it has the selected layers and heads."""
        self.measurer.probe(batch)
        self.selection.check(self.name, self.measurer.n_layer, self.measurer.heads)

    def _settings(self, corpus: Corpus | IterableCorpus, tokens: int) -> dict[str, Any]:
        """Return all options that affect the result, by the names that users know."""
        identity, selection, model = corpus.identity(), self.selection, self.measurer.model
        shared = self.run.checkpoint is not None or self.group.world_size > 1
        return {
            "model": self.name,
            "dtype": str(model.dtype),
            "metrics": selection.metrics,
            "corpus": identity["name"],
            "size of the corpus": identity["size"],
            "beginning of the corpus": identity["sha256"],
            "field": identity["field"],
            "target_field": identity["target_field"],
            "max_length": self.reader.limit,
            "batch_tokens": tokens,
            "special": selection.special,
            "without_sink": selection.without_sink,
            "weigh": selection.weigh,
            "stack": selection.stack,
            "layers": selection.layers,
            "weights": fingerprint(model) if shared else None,
        }

    def _notices_of_corpus(self, corpus: Corpus | IterableCorpus, accumulator: Accumulator) -> list[str]:
        """Return notices about texts that were left out or truncated, and about unknown tokens."""
        reader, notices = self.reader, []
        if accumulator.empty:
            left_out = counted(accumulator.empty, "text")
            notices.append(f"{left_out} skipped: no tokens in {self.name}.")
        if accumulator.cut:
            texts = f"{accumulator.cut:,} of {accumulator.sequences:,} texts"
            notices.append(f"{texts} were truncated to {reader.limit:,} tokens.")
        unknown, n_token = accumulator.unknown
        if unknown and unknown >= MANY_UNKNOWN * n_token:
            notices.append(notice_of_unknown(reader.tokenizer, unknown, n_token, str(corpus)))
        return notices

    def _table(self, accumulator: Accumulator) -> HeadTable:
        """Return the table of the selected heads."""
        measurer, selection, order = self.measurer, self.selection, self.order
        measured = {stack: list(measurer.of_stack(stack)) for stack in accumulator.layers}
        rows = [
            row
            for row in accumulator.rows(selection.metrics, measured)
            if selection.heads is None or row.head in selection.heads
        ]
        stacks = {row.stack for row in rows}
        table = HeadTable(
            model=self.name,
            metrics={name: METRICS[name].meaning for name in selection.metrics},
            sequences=accumulator.sequences,
            tokens=accumulator.tokens,
            layers={stack: sizes for stack, sizes in accumulator.layers.items() if stack in stacks},
            rows=rows,
            without_sink=selection.without_sink,
            weigh=selection.weigh,
            sort=order.sort,
            reverse=order.reverse,
            top=order.top,
        )
        if order.sort is not None and all(row.values[order.sort] is None for row in rows):
            table.notices.append(
                f"no query has a value for {order.sort}: the heads are in the order of layers."
            )
        if selection.weigh is not None:
            table.notices.append(
                "weighed by values: each weight is multiplied by the norm ‖v_j W_O^h‖ of its key's"
                " value, and the products of each query are rescaled to sum to 1."
            )
            if measurer.norms is not None and measurer.norms.notice is not None:
                table.notices.append(measurer.norms.notice)
        if selection.without_sink:
            table.notices.append(
                "without sinks: weights to the first token and to special tokens are left out, and"
                " the weights to the other keys are rescaled to sum to 1 for each query."
            )
        if measurer.why_eager is not None:
            table.notices.append(
                f"{measurer.why_eager}. These metrics are from its own eager attention."
            )
        if measurer.eager_notice is not None:
            table.notices.append(measurer.eager_notice)
        return table
