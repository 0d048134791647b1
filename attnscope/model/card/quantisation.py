"""How a configuration says that weights are stored: `quantization_config` and `hf_quant_config.json`.

Only matrices of products are quantised: neither embeddings nor norms, biases and routers.
What each format stores beside the numbers themselves:

- AWQ, GPTQ: a scale of 2 bytes and a zero point for each group of a row; GPTQ's `g_idx` is 4 bytes for
  each input. (https://github.com/ModelCloud/GPTQModel, `BaseQuantLinear`)
- bitsandbytes: 4 bits: a number for 64 weights, of 1 byte if it is quantised itself, with 4 bytes for
  256 of these; 8 bits: 4 bytes a row. (`QuantState.as_dict`)
- FP8: 4 bytes for each block of 128 × 128, each row or each matrix. (transformers' finegrained_fp8.py)
- compressed-tensors: a scale in the model's 2 bytes for each group, row, block or matrix.
  (https://github.com/vllm-project/compressed-tensors, `QuantizationArgs`)
- NVFP4: a byte for 16 weights; MXFP4, MXFP8: a byte for 32.
  (https://www.opencompute.org/documents/ocp-microscaling-formats-mx-v1-0-spec-final-pdf)
"""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, prod
from typing import Any

from attnscope.base.text import printable, shortened
from attnscope.model.card import tensor_parts as parts
from attnscope.model.files.config import text_part


class UnknownFormatError(Exception):
    """A configuration quantises weights in a format that is not known; it says what it names."""


@dataclass(frozen=True)
class Scheme:
    """How a matrix is stored."""

    name: str  #: for people
    bits: int  #: of a weight
    block: tuple[int, int] = (0, 0)  #: the outputs and the inputs that share a scale; 0: all
    scale: int | Fraction = 4  #: the bytes of what a block has beside its weights
    per_input: int = 0  #: further bytes for each input

    def n_bytes(self, n_out: int, n_in: int) -> int:
        """Return the bytes of a matrix."""
        rows, columns = self.block
        n_block = ceil(n_out / (rows or n_out)) * ceil(n_in / (columns or n_in))
        return ceil(Fraction(n_out * n_in * self.bits, 8) + n_block * self.scale) + self.per_input * n_in


Matches = Callable[[str], bool]
"""Whether a pattern of module names matches one."""


@dataclass(frozen=True)
class Quantisation:
    """How the weights of a model are stored."""

    source: str  #: where that is said: `quantization_config` or `hf_quant_config.json`
    #: For each, which modules it stores; the first that matches counts.
    schemes: tuple[tuple[Matches, Scheme], ...]
    spared: Matches  #: whether a module is not quantised, whatever matches it
    spares_output: bool = True  #: whether the output is not quantised
    spares_towers: bool = False  #: whether towers are not
    experts_only: bool = False  #: whether only experts are
    #: Of what is not quantised, where config.json does not say it; None: it is not known.
    dtype: str | None = None

    def scheme_of(self, name: str, shape: tuple[int, ...], part: str) -> Scheme | None:
        """Choose the scheme that stores a tensor; None: it is stored in the dtype of the model.

        Args:
            shape: of the tensor; of experts, perhaps of all in one.
        """
        is_expert = part == parts.EXPERTS
        if not (len(shape) == 2 or (is_expert and len(shape) == 3)) or part == parts.EMBEDDING:
            return None
        if part in (parts.NORMS, parts.BIASES) or _UNQUANTISED.search(name):
            return None
        spared = (
            (self.spares_output and part == parts.OUTPUT)
            or (self.spares_towers and part == parts.TOWERS)
            or (self.experts_only and not is_expert)
        )
        if spared or self.spared(name):
            return None
        return next((scheme for matches, scheme in self.schemes if matches(name)), None)

    def n_bytes(
        self, name: str, shape: tuple[int, ...], part: str, itemsize: int
    ) -> tuple[str | None, int]:
        """Name the scheme that stores a tensor, None: the dtype of the model; and count its bytes."""
        scheme = self.scheme_of(name, shape, part)
        if scheme is None:
            return None, prod(shape) * itemsize
        return scheme.name, prod(shape[:-2]) * scheme.n_bytes(*shape[-2:])


_UNQUANTISED = re.compile(r"(^|\.)(gate|router|shared_expert_gate|weights_proj|conv1d)(\.\w+)?$")
"""Small matrices that no format quantises: routers, the weights of an indexer's heads, convolutions."""


def quantisation_of(config: dict[str, Any], beside: dict[str, Any] | None = None) -> Quantisation | None:
    """Read how weights are quantised; None: they are not.

    Args:
        beside: that of hf_quant_config.json; None: there is none.

    Raises:
        UnknownFormatError: they are, in a format that is not known.
    """
    source, settings = settings_of(config, beside)
    if settings is None:
        return None
    method = str(settings.get("quant_method", "modelopt" if "quant_algo" in settings else "")).lower()
    if "quant_algo" in settings:
        return _modelopt(source, settings, method)
    if method not in _METHODS:
        raise UnknownFormatError(f"{source} names {_shown(method) or 'no quant_method'}")
    return _METHODS[method](source, settings)


def settings_of(
    config: dict[str, Any], beside: dict[str, Any] | None = None
) -> tuple[str, dict[str, Any] | None]:
    """Find the field or file that says how a model is quantised, and its content; None: it has none."""
    for part in (config, text_part(config)):
        found = part.get("quantization_config")
        if isinstance(found, dict):
            return "quantization_config", found
    found = (beside or {}).get("quantization")
    return "hf_quant_config.json", found if isinstance(found, dict) else None


def _shown(value: Any) -> str:
    return printable(shortened(str(value)))


def _all(name: str) -> bool:
    return True


def _awq(source: str, settings: dict[str, Any], per_input: int = 0) -> Quantisation:
    bits, group = settings.get("bits", settings.get("w_bit")), settings.get("group_size")
    group = settings.get("q_group_size", 128) if group is None else group
    if bits is None:
        raise UnknownFormatError(f"{source} does not say how many bits a weight has")
    if type(bits) is not int or not 2 <= bits <= 8 or type(group) is not int:
        raise UnknownFormatError(f"{source} says {_shown(bits)} bits in groups of {_shown(group)}")
    scheme = Scheme(f"{bits} bits", bits, (1, max(group, 0)), 2 + Fraction(bits, 8), per_input)
    return Quantisation(source, ((_all, scheme),), _spared(settings), spares_towers=True)


def _gptq(source: str, settings: dict[str, Any]) -> Quantisation:
    if settings.get("dynamic"):
        raise UnknownFormatError(f"{source} has rules for single modules (dynamic)")
    return _awq(source, settings, per_input=4)


def _bitsandbytes(source: str, settings: dict[str, Any]) -> Quantisation:
    if settings.get("load_in_4bit"):
        double = settings.get("bnb_4bit_use_double_quant")
        scale = 1 + Fraction(4, 256) if double else Fraction(4)
        scheme = Scheme(str(settings.get("bnb_4bit_quant_type", "fp4")), 4, (1, 64), scale)
    elif settings.get("load_in_8bit"):
        scheme = Scheme("int8", 8, (1, 0))
    else:
        raise UnknownFormatError(f"{source} says neither load_in_4bit nor load_in_8bit")
    return Quantisation(source, ((_all, scheme),), _spared(settings))


def _fp8(source: str, settings: dict[str, Any]) -> Quantisation:
    block = settings.get("weight_block_size")
    if block is not None and not (isinstance(block, list) and [type(n) for n in block] == [int, int]):
        raise UnknownFormatError(f"{source} says blocks of {_shown(block)}")
    scheme = Scheme("fp8", 8, (block[0], block[1]) if block else (0, 0))
    return Quantisation(source, ((_all, scheme),), _spared(settings))


def _fbgemm(source: str, settings: dict[str, Any]) -> Quantisation:
    return Quantisation(source, ((_all, Scheme("fp8", 8, (1, 0))),), _spared(settings))


def _mxfp4(source: str, settings: dict[str, Any]) -> Quantisation:
    scheme = Scheme("mxfp4", 4, (1, 32), 1)
    return Quantisation(
        source, ((_all, scheme),), _spared(settings), experts_only=True, dtype="bfloat16"
    )  # transformers' quantizer_mxfp4.py


def _compressed(source: str, settings: dict[str, Any]) -> Quantisation:
    groups = settings.get("config_groups")
    schemes: list[tuple[Matches, Scheme]] = []
    for group in groups.values() if isinstance(groups, dict) else ():
        weights = group.get("weights") if isinstance(group, dict) else None
        if not isinstance(weights, dict):
            raise UnknownFormatError(f"{source} has a group that does not say how weights are stored")
        form = str(group.get("format") or settings.get("format") or "")
        scheme = _of_arguments(source, weights, form)
        targets = group.get("targets", ["Linear"])
        targets = [str(each) for each in targets] if isinstance(targets, list) else []
        if "Linear" in targets:
            schemes.append((_all, scheme))
        else:
            schemes.insert(0, (_matcher(targets), scheme))
    if not schemes:
        raise UnknownFormatError(f"{source} has no config_groups")
    return Quantisation(source, tuple(schemes), _spared(settings), spares_output=False)


def _of_arguments(source: str, weights: dict[str, Any], form: str) -> Scheme:
    """Read `QuantizationArgs` of compressed-tensors."""
    bits, kind, group = weights.get("num_bits"), weights.get("type", "int"), weights.get("group_size")
    other = "marlin" in form or "sparse" in form
    if other or type(bits) is not int or not 2 <= bits <= 8:
        raise UnknownFormatError(f"{source} says {_shown(bits)} bits as {_shown(form)}")
    if kind == "float" and bits == 4:
        return FLOAT4[32 if "mxfp4" in form or group == 32 else 16]
    strategy = weights.get("strategy") or ("group" if group else "tensor")
    zero = 0 if weights.get("symmetric", True) else Fraction(bits, 8)
    block = weights.get("block_structure")
    blocks = {"tensor": (0, 0), "channel": (1, 0), "group": (1, group or 0)}
    if strategy == "block" and isinstance(block, list) and [type(n) for n in block] == [int, int]:
        blocks["block"] = (block[0], block[1])
    if strategy not in blocks or (strategy == "group" and type(group) is not int):
        raise UnknownFormatError(f"{source} says the strategy {_shown(strategy)}")
    name = "fp8" if kind == "float" else f"int{bits}"
    return Scheme(name, bits, blocks[strategy], 2 + zero)


FLOAT4 = {16: Scheme("nvfp4", 4, (1, 16), 1), 32: Scheme("mxfp4", 4, (1, 32), 1)}
"""Floats of 4 bits, by the weights that share a scale of one byte."""
ALGORITHMS = {
    "FP8": Scheme("fp8", 8, (0, 0)),
    "FP8_PER_CHANNEL_PER_TOKEN": Scheme("fp8", 8, (1, 0)),
    "FP8_PB_WO": Scheme("fp8", 8, (128, 128)),
    "NVFP4": FLOAT4[16],
    "W4A16_NVFP4": FLOAT4[16],
    "MXFP4": FLOAT4[32],
    "MXFP8": Scheme("mxfp8", 8, (1, 32), 1),
}
"""The algorithms of modelopt that vLLM 0.32 has: `LINEAR_ALGOS` in its modelopt.py."""


def _modelopt(source: str, settings: dict[str, Any], method: str) -> Quantisation:
    algorithm = str(settings["quant_algo"]).upper()
    layers = settings.get("quantized_layers")
    if algorithm != "MIXED_PRECISION":
        listed: list[tuple[Matches, str]] = [(_all, algorithm)]
    elif isinstance(layers, dict) and method.startswith("modelopt"):
        listed = []
        algorithms = {
            name: str(layer.get("quant_algo")).upper() if isinstance(layer, dict) else ""
            for name, layer in layers.items()
        }
        for each in dict.fromkeys(algorithms.values()):
            listed.append((_matcher([n for n, own in algorithms.items() if own == each]), each))
    else:
        raise UnknownFormatError(f"{source} says MIXED_PRECISION beside {_shown(method)}")
    unknown = [each for _, each in listed if each not in ALGORITHMS]
    if unknown or not listed:
        raise UnknownFormatError(f"{source} says {_shown(', '.join(unknown) or algorithm)}")
    schemes = tuple((matches, ALGORITHMS[each]) for matches, each in listed)
    return Quantisation(source, schemes, _spared(settings), spares_output=False)


_METHODS: dict[str, Callable[[str, dict[str, Any]], Quantisation]] = {
    "awq": _awq,
    "gptq": _gptq,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
    "fbgemm_fp8": _fbgemm,
    "mxfp4": _mxfp4,
    "compressed-tensors": _compressed,
}

_SPARED = ("modules_to_not_convert", "ignore", "exclude_modules", "llm_int8_skip_modules")


def _spared(settings: dict[str, Any]) -> Matches:
    """Match the modules that a configuration leaves as they are."""
    patterns: list[str] = []
    for name in _SPARED:
        found = settings.get(name)
        patterns += [str(each) for each in found] if isinstance(found, list) else []
    return _matcher(patterns)


_PREFIX = re.compile(r"^((model|language_model|transformer|backbone|text_model)\.)+")
"""What precedes a module's own name, which differs between checkpoints and transformers."""


def _matcher(patterns: Iterable[str]) -> Matches:
    """Return a function that says whether a pattern matches the name of a module.

    A pattern is a regular expression after `re:`, has stars, or is a name of modules, perhaps in others.
    """
    forms = []
    for pattern in patterns:
        if pattern.startswith("re:"):
            forms.append(f"(?:{pattern[3:]}).*")
            continue
        own = _PREFIX.sub("", pattern)
        if "*" in own:
            forms.append(f"(?:{fnmatch.translate(own)[:-2]})(?:\\..*)?")
        else:
            forms.append(f"(?:.*\\.)?{re.escape(own)}(?:\\..*)?")
    if not forms:
        return lambda name: False
    try:
        form = re.compile("|".join(f"(?:{each})" for each in forms), re.DOTALL)
    except re.error as error:
        raise UnknownFormatError(f"a pattern of modules cannot be read: {error}") from error
    return lambda name: any(form.fullmatch(each) for each in (_PREFIX.sub("", name), name))
