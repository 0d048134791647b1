"""Find the files of a model by name: a folder, one of its files, or a model on the hub.

Unlike `checkpoint.find_checkpoint`, nothing is downloaded but small files of JSON: weights are files
whose bytes can be read in ranges, wherever they are.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import ModelError
from attnscope.base.spelling import quoted
from attnscope.base.text import alternatives, printable, shortened
from attnscope.model.files.checkpoint import BUNDLED, Checkpoint, find_checkpoint
from attnscope.model.files.config import read_config, read_json

if TYPE_CHECKING:
    from attnscope.model.files.ranges import Ranges

INDEX = "model.safetensors.index.json"
CONFIG = "config.json"
ADAPTER, PIPELINE = "adapter_config.json", "model_index.json"
QUANTISATION = "hf_quant_config.json"
WEIGHTS = (".safetensors", ".gguf")
SUFFIXES = (*WEIGHTS, ".json")
"""The suffixes of files that are models by themselves."""

QUANTISED = re.compile(
    r"(\w[\w.-]*/\w[\w.-]*)(?<!\.py):((?:\w+-)?(?:i?q\d\w*|tq\d\w*|b?f16|f32|mxfp4\w*))", re.IGNORECASE
)
"""A repository on the hub, and how the GGUF file that is meant is quantised."""

PICKLES = (".bin", ".pt", ".pth")

PART = re.compile(r"(.*)-(\d{5,6})-of-(\d{5,6})(\.safetensors|\.gguf)", re.DOTALL)
"""The name of one part of several: prefix, number from 1 on, count, suffix."""

MOST_SHOWN = 4
"""The number of file names that an error lists."""


class NoWeightsError(ModelError):
    """A model whose weights have no header that can be read: there are none here, or only pickles.

    Attributes:
        n_bytes: the bytes of all weights, by an index whose files are not here; None: not known.
    """

    def __init__(self, message: str, hint: str | None = None, n_bytes: int | None = None) -> None:
        super().__init__(message, hint)
        self.n_bytes = n_bytes


@dataclass(frozen=True)
class ModelFiles:
    """The files of a model. None is opened before it is needed."""

    name: str  #: the name that the user gave
    place: Checkpoint  #: the folder or the repository on the hub that contains them
    #: The path of the one file that was named, within it; None: all belong to the model.
    file: str | None = None

    @property
    def is_config(self) -> bool:
        """Whether config.json alone was named."""
        named = self.file or ""
        return named.endswith(".json") and not named.endswith(".index.json")

    def config(self) -> dict[str, Any] | None:
        """Return the content of the model's `config.json`; None if it has none."""
        named = self.file if self.file and self.is_config else CONFIG
        path = self.place.file(named)
        return None if path is None else read_config(path)

    def quantisation(self) -> dict[str, Any] | None:
        """Return the content of `hf_quant_config.json`, which modelopt writes; None if there is none."""
        if self.file not in (None, CONFIG):
            return None
        try:
            path = self.place.first_file(QUANTISATION)
        except ModelError:  # the hub does not answer, and it is not in the cache
            return None
        return None if path is None else read_json(path)

    def weights(self) -> list[Ranges]:
        """Return the files of weights: safetensors or GGUF, of a split GGUF file only the first part.

        Raises:
            NoWeightsError: there are none whose header can be read.
        """
        if self.file is not None:
            if self.is_config:
                raise NoWeightsError(f"{self.name} is a configuration, without weights.")
            of_index = self.file.endswith(".index.json")
            return self._ranges(self._shards(self.file) if of_index else [self.file])
        cached_files = (self.place.file_here(name) for name in (CONFIG, INDEX, "model.safetensors"))
        if self.place.folder is None and (cached := next((path for path in cached_files if path), None)):
            here = ModelFiles(self.name, Checkpoint(self.name, cached.parent))
            names = here.place.filenames()
            chosen = here._choose(names)
            if chosen and set(chosen) <= set(names):
                return here._ranges(chosen)
        try:
            names = self.place.filenames()
        except ModelError as error:
            if self.place.folder is None and self.place.file_here(CONFIG):
                raise NoWeightsError(
                    f"only the configuration of {self.name} is in the cache of the hub: {error.message}",
                    hint=error.hint,
                ) from error
            raise
        chosen = self._choose(names)
        if not chosen:
            raise self._without_weights(names)
        missing = [each for each in chosen if each not in names]
        if missing == chosen and (total := self._size_by_index()) is not None:
            raise NoWeightsError(
                f"the {len(missing)} files that its index lists are not here: the size of the weights is"
                " the index's.",
                n_bytes=total,
            )
        if missing:
            config = Path(self.place.folder or ".") / CONFIG
            raise ModelError(
                f"{self.name} lacks {len(missing)} of {len(chosen)} files that its index lists:"
                f" {_listed(missing)}.",
                hint=f"download them again; or, without weights: {config}",
            )
        return self._ranges(chosen)

    def _choose(self, names: Collection[str]) -> list[str]:
        """Return the files with the weights, in the order in which transformers looks for them."""
        if "model.safetensors" in names:
            return ["model.safetensors"]
        names = [each for each in names if "/" not in each or each.endswith(".gguf")]
        sets = complete_sets(names, ".safetensors")
        if INDEX in names:
            # An index has megabytes. It is only needed where the names of the shards do not say enough.
            return sets["model"] if [*sets] == ["model"] else self._shards(INDEX)
        for suffix in WEIGHTS:
            sets = _whole_sets(names, suffix)
            if len(sets) > 1:
                raise self._ambiguous(sets.values())
            if sets:
                (files,) = sets.values()
                return files if suffix == ".safetensors" else files[:1]
        return []

    def _shards(self, index: str) -> list[str]:
        """Return the names of the files in an index, sorted."""
        path = self.place.file(index)
        if path is None:
            raise ModelError(f"{self.name} has no {index}.")
        weight_map = read_json(path).get("weight_map")
        listed = list(weight_map.values()) if isinstance(weight_map, dict) else []
        files: set[str] = {
            each
            for each in listed
            if isinstance(each, str) and each and not os.path.isabs(each) and ".." not in each
        }
        if not files or len(files) < len(set(map(str, listed))):
            raise ModelError(f"{path} is damaged: its weight_map does not name files.")
        return sorted(files)

    def _size_by_index(self) -> int | None:
        """Return the bytes of all weights, as the index says; None if it does not."""
        path = self.place.file_here(INDEX)
        metadata = read_json(path).get("metadata") if path is not None else None
        total = metadata.get("total_size") if isinstance(metadata, dict) else None
        return total if type(total) is int and total > 0 else None

    def refuse_other_kinds(self) -> None:
        """Refuse an adapter and a pipeline of several models, which have no attention of their own."""
        named = None if self.file is None else Path(self.file).name
        if self.file is None and self.place.has(CONFIG):
            return
        title = self.name.removesuffix(f"/{named}") if named else self.name
        if named in (None, ADAPTER) and (path := self.place.file_here(ADAPTER)) is not None:
            fields = read_json(path)
            base, kind = fields.get("base_model_name_or_path"), fields.get("peft_type")
            whose = f" of {printable(shortened(base))}" if isinstance(base, str) and base else ""
            what = "a LoRA adapter" if kind == "LORA" else "an adapter"
            raise ModelError(
                f"{title} is {what}{whose}, which has no cache of its own.",
                hint=f"attnscope card {quoted(printable(base))}"
                if whose
                else "the model that it was trained for",
            )
        if named in (None, PIPELINE) and (path := self.place.file_here(PIPELINE)) is not None:
            content = read_json(path)
            kind = printable(shortened(str(content.get("_class_name", "of no class"))))
            parts = [
                part
                for part, of in content.items()
                if isinstance(of, list)
                and of[:1] == ["transformers"]
                and self.place.has(f"{part}/{CONFIG}")
            ]
            raise ModelError(
                f"{title} is a pipeline of diffusers ({kind}) of several models.",
                hint="attnscope card " + quoted(f"{title}/{parts[0]}")
                if parts
                else "the folder of one of them",
            )

    def _ranges(self, names: Iterable[str]) -> list[Ranges]:
        """Return files of the model as ranges: from this machine if they are here."""
        from attnscope.model.files.ranges import FileRanges, hub_ranges

        if self.place.folder is not None:
            return [FileRanges(self.place.folder / name) for name in names]
        here = {name: self.place.file_here(name) for name in names}
        return [
            FileRanges(path) if path else hub_ranges(self.place.name, name)
            for name, path in here.items()
        ]

    def _ambiguous(self, sets: Iterable[list[str]]) -> ModelError:
        first = sorted(files[0] for files in sets)
        examples = [f"{self.name.rstrip('/')}/{each}" for each in first]
        return ModelError(
            f"{self.name} has {len(first)} sets of weights: {_listed(first)}.",
            hint=f"one of them: {alternatives(map(printable, examples[:2]))}",
        )

    def _without_weights(self, names: Collection[str]) -> NoWeightsError:
        pickles = [each for each in names if "/" not in each and each.endswith(PICKLES)]
        if pickles:
            return NoWeightsError(
                f"{self.name} has its weights only as pickles, whose headers are not read:"
                f" {_listed(pickles)}.",
            )
        return NoWeightsError(f"{self.name} has no weights: neither safetensors nor GGUF.")


def find_model_files(model: str | Path) -> ModelFiles:
    """Find the files of a model by name.

    Args:
        model: a folder; a `config.json`, a `.safetensors` or a `.gguf` file; a name on the hub such as
            `bert-base-uncased`; a file on the hub, `owner/name/file.gguf`, or `owner/name:Q4_K_M`, as
            llama.cpp takes it; or `minilm`.
    """
    name = str(model)
    path = Path(os.path.expanduser(name))
    if name and name != BUNDLED and os.path.isfile(path):  # Path.is_file raises for long names
        if path.suffix not in SUFFIXES:
            raise ModelError(
                f"{shortened(name)} is neither a configuration nor a file of weights with a header.",
                hint=f"a file that ends in {alternatives(SUFFIXES)}, or its folder, {path.parent}",
            )
        return ModelFiles(name, Checkpoint(str(path.parent), path.parent), path.name)
    on_hub = re.fullmatch(r"(\w[\w.-]*/\w[\w.-]*)/(\w[\w./ -]*)", name)
    if on_hub and name.endswith(SUFFIXES) and ".." not in name and not os.path.exists(path):
        return ModelFiles(name, find_checkpoint(on_hub[1]), on_hub[2])
    quantised = QUANTISED.fullmatch(name)
    if quantised and not os.path.exists(path):
        place = find_checkpoint(quantised[1])
        return ModelFiles(name, place, _quantised_file(place, quantised[2]))
    return ModelFiles(name, find_checkpoint(model))


def _quantised_file(place: Checkpoint, tag: str) -> str:
    """Return the GGUF file, or its first part, whose name says how it is quantised, in any case."""
    tagged = re.compile(rf"(?:^|[-._/]){re.escape(tag)}(?=[-./]|$)", re.IGNORECASE)
    every = sorted(files[0] for files in _whole_sets(place.filenames(), ".gguf").values())
    if not every:
        raise ModelError(f"{place.name} has no GGUF files, so none is quantised as {shortened(tag)}.")
    found = [each for each in every if tagged.search(each.removesuffix(".gguf"))]
    if len(found) == 1:
        return found[0]
    how_many = f"{len(found)} GGUF files" if found else "no GGUF file"
    examples = [f"{place.name}/{each}" for each in (found or every)[:2]]
    raise ModelError(
        f"{how_many} of {place.name} can be meant by {shortened(tag)};"
        f" there are {_listed(found or every)}.",
        hint=f"one of them: {alternatives(map(printable, examples))}",
    )


def _whole_sets(names: Collection[str], suffix: str) -> dict[str, list[str]]:
    """Return the sets of weights that are complete, in one file or in parts: a name → the files."""
    sets = complete_sets(names, suffix)
    sets |= {each: [each] for each in names if each.endswith(suffix) and not PART.fullmatch(each)}
    # A projector of images beside its model: convert_hf_to_gguf.py of llama.cpp
    return {
        name: each for name, each in sets.items() if not name.rpartition("/")[2].startswith("mmproj")
    }


def complete_sets(names: Iterable[str], suffix: str) -> dict[str, list[str]]:
    """Return the sets of parts of which all are there: the common prefix → the names in order.

    >>> complete_sets(
    ...     ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "x-00001-of-00002.gguf"], ".gguf"
    ... )
    {'m': ['m-00001-of-00002.gguf', 'm-00002-of-00002.gguf']}

    Prefixes that have several complete sets are left out: their names do not say which is valid.
    """
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for name in names:
        found = PART.fullmatch(name)
        if found and found[4] == suffix:
            parts.setdefault((found[1], int(found[3])), {})[int(found[2])] = name
    complete: dict[str, list[list[str]]] = {}
    for (prefix, count), numbered in parts.items():
        if len(numbered) == count and min(numbered) == 1 and max(numbered) == count:
            complete.setdefault(prefix, []).append([numbered[i] for i in sorted(numbered)])
    return {prefix: sets[0] for prefix, sets in complete.items() if len(sets) == 1}


def _listed(names: Iterable[str]) -> str:
    """Return the first of several names, on one line."""
    names = sorted(names)
    shown = ", ".join(printable(shortened(each)) for each in names[:MOST_SHOWN])
    return f"{shown}, …" if len(names) > MOST_SHOWN else shown
