"""Open a model for one run: find it, read its configuration, plan memory, load it.

Rooms that run a model differ in what they read, and in what they keep in memory; the rest is here::

    with open_model("gpt2", "cpu", progress=progress) as run:
        with run.loading():
            reading = read_inputs(inputs, run.checkpoint, run.config)
            run.check_fits(run.needs(1, len(reading.source), kept=bytes_of_maps), "reading", hint)
            run.load()
        plan = run.plan(run.needs(1, len(reading.source), kept=bytes_of_maps), hint)

Nothing is loaded before the inputs are known to be right and to fit.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from attnscope.base.dtypes import FLOATS
from attnscope.base.process.budget import memory_budget
from attnscope.base.process.devices import check_device, kept_random_state
from attnscope.base.process.memory import check_imports, return_freed_memory
from attnscope.base.process.progress import Progress, silent, stage, without_garbage_collection
from attnscope.base.process.verbosity import kept_verbosity
from attnscope.model.files.checkpoint import Checkpoint
from attnscope.model.files.loaded import find_model
from attnscope.model.run import weights_fit
from attnscope.model.run.load import device_of, load_config, load_model
from attnscope.model.run.memory_plan import Measured, MemoryPlan, Needs, needs_of, plan_run, tokens_text


@dataclass
class OpenedModel:
    """A model that is about to run: first its configuration, then its weights."""

    checkpoint: Checkpoint
    #: the device that it runs on: a loaded model stays on its own, unless another is requested.
    device: str
    #: None: the dtype in which its weights are stored.
    dtype: str | None
    #: the limit of a run beside the weights, as `memory_budget` takes it.
    memory: str | int | None
    progress: Progress
    #: None until it is loaded.
    model: Any = None
    _config: Any = None

    @property
    def name(self) -> str:
        """The model's name in messages."""
        return self.checkpoint.name

    @property
    def config(self) -> Any:
        """The model's configuration, which loading may change."""
        return self._config if self.model is None else self.model.config

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Read the configuration; inputs are checked, and the model loaded, within the context."""
        with stage(self.progress, f"loading {self.name} …"), without_garbage_collection():
            self._config = load_config(self.checkpoint)
            yield

    def check_device(self) -> None:
        """Raise an OptionError unless this machine has the device."""
        check_device(self.device)

    def check_weights_fit(self, beside: int = 0, what: str = "maps", hint: str | None = None) -> None:
        """Raise a SizeError unless the weights, and these bytes beside them, fit into memory."""
        weights_fit.check_weights_fit(
            *(self.checkpoint, self.config, self.dtype, self.device),
            beside=beside,
            what=what,
            hint=hint,
        )

    def check_fits(self, needs: Needs, doing: str, hint: str) -> None:
        """Raise a SizeError unless the weights, and the least that a run needs, fit into memory."""
        what = f"{doing} {tokens_text(needs.n_batch, needs.n_tokens)} at least"
        self.check_weights_fit(needs.least, what, hint)

    def load(
        self, *, attention: str | None = None, generates: bool = False, device_map: str | None = None
    ) -> Any:
        """Load the model, and return it; see `load_model`."""
        self.model = load_model(
            self.checkpoint,
            self.config,
            dtype=self.dtype,
            device=self.device,
            attention=attention,
            generates=generates,
            device_map=device_map,
        )
        if device_map is not None:
            self.device = str(self.model.device)
        return self.model

    def needs(self, n_batch: int, n_tokens: int, **measured: Any) -> Needs:
        """Estimate the memory for some tokens; `measured`: as in `Measured`."""
        if self.model is None:
            itemsize = FLOATS.get(weights_fit.dtype_of(self.config, self.dtype), 4)
        else:
            itemsize = self.model.dtype.itemsize
        return needs_of(self.config, itemsize, n_batch, n_tokens, Measured(**measured))

    @property
    def budget(self) -> int:
        """The bytes that the run may take beside the model's weights."""
        return memory_budget(self.memory, self.device)

    def plan(self, needs: Needs, hint: str) -> MemoryPlan:
        """Divide the memory of the run among its parts; raise a SizeError if there is too little."""
        return plan_run(self.name, needs, self.budget, self.device, hint)


@contextmanager
def open_model(
    model: Any,
    device: str = "cpu",
    *,
    dtype: str | None = None,
    memory: str | int | None = None,
    tokenizer: Any = None,
    image_processor: Any = None,
    progress: Progress = silent,
) -> Iterator[OpenedModel]:
    """Find a model, which runs in the context; at its end, the process's settings are restored.

    Args:
        model: as `find_model` takes it, and so are its tokenizer and its image processor.
        memory: the limit of the run beside the weights; None: a share of the free memory.
    """
    check_imports(transformers=True)
    return_freed_memory()
    checkpoint = find_model(model, tokenizer, image_processor)
    device = device_of(checkpoint, device)
    with kept_verbosity(), kept_random_state(device):
        yield OpenedModel(checkpoint, device, dtype, memory, progress)
