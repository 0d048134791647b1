"""Resolve the inputs of a run: the user's tensors, and sizes from these and from options."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from attnscope.base.errors import OptionError, SizeError, heads_do_not_divide
from attnscope.base.sizes import Sizes, called, one_dtype, shape_of
from attnscope.base.spelling import spelled
from attnscope.base.tensor_files import TensorFile, tensor_of
from attnscope.formula.inputs.layer import CheckpointLayer
from attnscope.formula.inputs.projections import open_projections

if TYPE_CHECKING:
    import torch

Files = dict[str, TensorFile]

OPTIONS = {
    "n_batch": "batch",
    "n_head": "heads",
    "n_kv_head": "kv_heads",
    "n_Q": "nq",
    "n_K": "nk",
    "n_new": "nk",
    "n_past": "past",
    "d_K": "dk",
    "d_V": "dv",
    "d_feat": "d_feat",
    "d_head": "d_head",
    "d_context": "d_context",
}
"""The options for sizes, by axis."""

NAMES = {
    "x": "X",
    "q": "Q",
    "k": "K",
    "v": "V",
    "past_k": "K_past",
    "past_v": "V_past",
    "wq": "W_Q",
    "wk": "W_K",
    "wv": "W_V",
    "wo": "W_O",
    "bq": "b_Q",
    "bk": "b_K",
    "bv": "b_V",
    "bo": "b_O",
}
"""The textbook's name of each option's tensor."""

LINEAR = "weights in nn.Linear's layout: output × input"


@dataclass
class RunInputs:
    """The inputs of a run.

    Attributes:
        sizes: all sizes that its contract takes.
        dtype: the dtype of the run.
        files: the tensors that come from files, by name.
        split: whether Q, K and V have merged heads, which are split.
        columns: whether vectors are columns: the last two axes of every tensor are swapped.
        distribution: that of inputs without a file: `uniform`, or None for standard normal.
    """

    sizes: dict[str, int]
    dtype: str
    files: Files = field(default_factory=dict)
    split: bool = False
    columns: bool = False
    distribution: str | None = None

    def tensor(self, name: str, shape: tuple[int, ...], device: str) -> torch.Tensor:
        """Return an input: from its file if it has one, else drawn.

        By columns, the drawn values are those by rows, transposed.

        Args:
            name: such as `Q`.
            shape: the shape of the result; a file's tensor has as many elements.
            device: the device of the result.
        """
        import torch

        from attnscope.base.process.devices import draw

        if name in self.files:
            dtype = getattr(torch, self.dtype)
            return self.files[name].load().to(device=device, dtype=dtype).reshape(shape)
        if self.columns:
            shape = (*shape[:-2], shape[-1], shape[-2])
        values = draw(shape, dtype=self.dtype, device=device, distribution=self.distribution)
        return values.mT.contiguous() if self.columns else values


def open_tensors(options: Mapping[str, Any], layer: CheckpointLayer | None = None) -> Files:
    """Return the user's tensors, by their names in the textbook.

    Args:
        options: arrays, tensors and files, by the options' names; None: not set.
        layer: the layer of a checkpoint that `weights` names, if it does.

    Raises:
        FileError: a file cannot be read.
        OptionError: a value is not a tensor.
    """
    found = {
        NAMES[option]: tensor_of(NAMES[option], value, f"the argument {option}")
        for option, value in options.items()
        if value is not None and option in NAMES
    }
    vectors = {name: file for name, file in found.items() if name[0] not in "Wb"}
    weights = {name: file for name, file in found.items() if name not in vectors}
    if layer is not None:
        return vectors | layer.files | weights
    return vectors | open_projections(options.get("weights"), weights)


def inputs_of_sdpa(
    options: Mapping[str, int | None],
    files: Files,
    masks: Sequence[TensorFile],
    dtype: str | None,
    *,
    columns: bool = False,
) -> RunInputs:
    """Resolve the inputs of `attnscope sdpa`.

    Args:
        options: sizes by axis, None where not set; `n_new` is the number of keys that are not of
            the past.
        files: any of `Q K V K_past V_past`, or `X W_Q W_K W_V`.
        masks: masks, whose sizes are used if nothing else determines them.
        dtype: the requested dtype, if any.
        columns: whether vectors are columns, in files and in masks: then the last two axes of each are
            swapped.

    Raises:
        SizeError: sizes disagree.
        OptionError: files do not go together, or have different dtypes.
    """
    _check_sources(files, needed=("W_Q", "W_K", "W_V"))
    new = _new_keys(options, files)
    sizes = Sizes({new if axis == "n_new" else axis: size for axis, size in options.items()}, OPTIONS)
    n_axes = _axes_of([files[name] for name in "XQKV" if name in files])
    heads = "n_head" in sizes
    split = heads and n_axes == 3
    if n_axes is None:
        n_axes = 4 if heads or "n_kv_head" in sizes else 3
    elif (heads and n_axes == 2) or (n_axes == 4 and "X" in files):
        first = next(files[name] for name in "XQKV" if name in files)
        raise SizeError(
            f"{called(first)} is {shape_of(first)}, and heads are split off three axes.",
            hint=f"n_batch n d_feat, or no {spelled('heads')}"
            if "X" in files
            else f"n_batch n n_head·d, or no {spelled('heads')}",
        )
    if "n_kv_head" in sizes and not heads and not ({"Q", "K", "V"} & set(files) and n_axes == 4):
        raise OptionError(
            f"{spelled('kv_heads', sizes['n_kv_head'])} shares keys among query heads, but there are"
            " no heads.",
            hint=spelled(heads=4 * sizes["n_kv_head"], kv_heads=sizes["n_kv_head"]),
        )
    if split and "n_kv_head" not in sizes:
        sizes.equate("n_kv_head", "n_head")

    lead = ("", "n_batch", "n_batch n_head")[n_axes - 2]
    kv_lead = lead.replace("n_head", "n_kv_head")
    past_lead = "n_batch n_kv_head" if split else kv_lead
    d = {"Q": "d_K", "K": "d_K", "V": "d_V"}
    if split:
        d = {"Q": "n_head·d_K", "K": "n_kv_head·d_K", "V": "n_kv_head·d_V"}
    dims = {"X": f"{lead} n_Q d_feat", **{f"W_{name}": f"d_feat {d[name]}" for name in d}}
    dims |= {
        "Q": f"{lead} n_Q {d['Q']}",
        "K": f"{kv_lead} {new} {d['K']}",
        "V": f"{kv_lead} {new} {d['V']}",
    }
    dims |= {"K_past": f"{past_lead} n_past d_K", "V_past": f"{past_lead} n_past d_V"}
    for name, axes in dims.items():
        if name in files:
            note = "V has one value for each key of K" if name == "V" and "K" in files else ""
            if columns:
                axes = _upright(axes)
                note = f"by columns, {name} is {axes}"
            sizes.take(files[name], axes, note=note)
        if name == "X" and "X" in files:
            sizes.equate(new, "n_Q")
    _learn_from_masks(sizes, masks, new, ["n_batch"] if lead else [], columns=columns)

    defaults = {"n_batch": 3} if lead else {}
    if split or "n_head" in lead:
        sizes.suppose("n_head", sizes.get("n_kv_head", 1))
        sizes.suppose("n_kv_head", sizes["n_head"])
        defaults |= {"n_head": 1, "n_kv_head": 1}
    defaults |= {"n_Q": 30, new: 50, "d_K": 128, "d_V": 256} | ({"n_past": 1} if new == "n_new" else {})
    defaults |= {"d_feat": 1} if "X" in files else {}
    return RunInputs(_filled(sizes, defaults), one_dtype(files, dtype), files, split, columns)


def _upright(dims: str) -> str:
    """Swap the last two axes: `n_batch n_Q d_K` becomes `n_batch d_K n_Q`."""
    *lead, n, d = dims.split()
    return " ".join([*lead, d, n])


def inputs_of_mha(
    options: Mapping[str, int | None],
    files: Files,
    masks: Sequence[TensorFile],
    dtype: str | None,
    layer: CheckpointLayer | None = None,
) -> tuple[RunInputs, bool]:
    """Resolve the inputs of `attnscope mha`; also return whether it is self-attention (K and V are Q).

    Args:
        options: as in `inputs_of_sdpa`.
        files: any of `Q K V K_past V_past`, or `X`; weights `W_Q W_K W_V W_O` and biases
            `b_Q b_K b_V b_O`.
        masks: masks, whose sizes are used if nothing else determines them.
        dtype: the requested dtype, if any.
        layer: the layer of a checkpoint that the weights come from, if they do.

    Raises:
        SizeError: sizes disagree.
        OptionError: files do not go together, or have different dtypes.
    """
    _check_sources(files, needed=())
    if "V" in files and "K" not in files:
        raise OptionError(
            f"{spelled('v')} gives values for keys, but {spelled('k')} is missing.",
            hint=spelled(k="FILE", v="FILE"),
        )
    if "X" in files:
        files = {"Q" if name == "X" else name: file for name, file in files.items()}
    new = _new_keys(options, files)
    of_layer = layer.sizes if layer is not None else {}
    self_attention = "K" not in files and options["n_new"] is None and options["d_context"] is None
    self_attention = self_attention and "d_context" not in of_layer
    names = OPTIONS | {"d_V": "d_value"}
    sizes = Sizes({new if axis == "n_new" else axis: size for axis, size in options.items()}, names)
    for axis, size in of_layer.items():
        sizes.learn(axis, size, f"{layer} has {axis} {size}", note=f"leave out {spelled(names[axis])}")
    sizes.suppose("n_head", 5)

    lead = _lead_of_mha(files, sizes)

    def take(name: str, dims: str, note: str = LINEAR) -> None:
        if name in files:
            sizes.take(files[name], dims, note=note if name[0] in "Wb" else "")

    take("Q", f"{lead} n_Q d_feat")
    merged = "n_head·d_head" if "d_head" in sizes else "d_feat"
    take("W_Q", f"{merged} d_feat", note=_note_of_queries(files, sizes))
    take("b_Q", merged)
    take("b_O", "d_feat")
    if self_attention:
        sizes.equate(new, "n_Q")
    _learn_head_width(files, sizes)
    context = "d_feat" if self_attention else "d_context"
    take("K", f"{lead} {new} {context}")
    take("V", f"{lead} {new} {context}")
    take("K_past", "n_batch n_kv_head n_past d_head")
    take("V_past", "n_batch n_kv_head n_past d_V")
    take("W_K", f"n_kv_head·d_head {context}")
    take("b_K", "n_kv_head·d_head")
    sizes.suppose("n_kv_head", sizes["n_head"])
    take("W_V", f"n_kv_head·d_V {context}")
    take("b_V", "n_kv_head·d_V")
    take("W_O", "d_feat n_head·d_V")
    _learn_from_masks(sizes, masks, new, ["n_batch"])
    if self_attention:  # a mask of keys alone says how many queries there are, too
        sizes.equate(new, "n_Q")

    sizes.suppose("n_Q", 32)
    defaults = {"n_batch": 128, "n_Q": 32, new: sizes["n_Q"], "d_feat": 200, "n_head": 5, "n_kv_head": 5}
    defaults |= {"d_head": sizes["d_head"], "d_V": sizes["d_head"], "d_context": sizes["d_feat"]}
    defaults |= {"n_past": 1} if new == "n_new" else {}
    return RunInputs(_filled(sizes, defaults), one_dtype(files, dtype), files), self_attention


def _lead_of_mha(files: Files, sizes: Sizes) -> str:
    """Return the batch axis of the inputs of `mha`; empty if they have none, so n_batch is 1."""
    vectors = [files[name] for name in "QKV" if name in files]
    n_axes = _axes_of(vectors)
    if n_axes == 4:
        raise SizeError(
            f"{called(vectors[0])} is {shape_of(vectors[0])}, but mha splits the heads itself.",
            hint="n_batch n d_feat",
        )
    if n_axes != 2:
        return "n_batch"
    sizes.learn("n_batch", 1, f"{called(vectors[0])} has no n_batch, so that n_batch is 1")
    return ""


def _note_of_queries(files: Files, sizes: Sizes) -> str:
    """Return the hint for a W_Q that does not fit: the width of a head, if it may be another one."""
    shape = files["W_Q"].shape if "W_Q" in files else ()
    if "d_head" in sizes or len(shape) != 2 or shape[0] == shape[1] or shape[0] % sizes["n_head"]:
        return LINEAR
    return f"{LINEAR}; or {spelled('d_head', shape[0] // sizes['n_head'])}"


def _learn_head_width(files: Files, sizes: Sizes) -> None:
    """Learn d_feat, from W_O if nothing else determines it, and the width of a head."""
    if "W_O" in files and len(files["W_O"].shape) == 2 and "d_feat" not in sizes:
        file = files["W_O"]
        sizes.learn("d_feat", file.shape[0], f"{called(file)} is {shape_of(file)}", note=LINEAR)
    n_head = sizes["n_head"]
    sizes.suppose("d_feat", n_head * sizes["d_head"] if "d_head" in sizes else 200)
    if "d_head" in sizes:
        return
    d_feat = sizes["d_feat"]
    if d_feat % n_head:
        raise heads_do_not_divide(d_feat, n_head)
    d_head = d_feat // n_head
    sizes.learn("d_head", d_head, f"d_feat {d_feat} / n_head {n_head} makes d_head {d_head}")


def _check_sources(files: Files, needed: tuple[str, ...]) -> None:
    """Raise an OptionError if X is combined with Q, K or V, or a file lacks its counterpart."""
    if "X" in files:
        factors = [name for name in "QKV" if name in files]
        if factors:
            name, option = factors[0], spelled(factors[0].lower())
            raise OptionError(
                f"{spelled('x')} gives the embeddings that Q, K and V are projected from, but"
                f" {option} gives {name} directly.",
                hint=f"one of {spelled('x')} and {option}",
            )
        missing = [name for name in needed if name not in files]
        if missing:
            option = spelled(missing[0].replace("_", "").lower())
            raise OptionError(
                f"{spelled('x')} gives embeddings, but {option} is missing, which projects them to"
                f" {missing[0][-1]}.",
                hint=spelled(x="FILE", wq="FILE", wk="FILE", wv="FILE"),
            )
    elif needed:
        projections = [name for name in needed if name in files]
        if projections:
            option = projections[0].replace("_", "").lower()
            raise OptionError(
                f"{spelled(option)} projects embeddings, but {spelled('x')} is missing.",
                hint=spelled(**{"x": "FILE", option: "FILE"}),
            )
    if ("K_past" in files) != ("V_past" in files):
        both = ("past_k", "past_v") if "K_past" in files else ("past_v", "past_k")
        raise OptionError(
            f"{spelled(both[0])} without {spelled(both[1])}: every key of the past needs its value.",
            hint=spelled(**dict.fromkeys(both, "FILE")),
        )


def _new_keys(options: Mapping[str, int | None], files: Files) -> str:
    """Return the name of the axis of the input keys."""
    return "n_K" if options["n_past"] is None and "K_past" not in files else "n_new"


def _axes_of(files: list[TensorFile]) -> int | None:
    """Return the number of axes of the tensors; None if there are none.

    Raises:
        SizeError: the numbers differ, or are below 2 or above 4.
    """
    for file in files:
        if not 2 <= len(file.shape) <= 4:
            raise SizeError(
                f"{called(file)} is {shape_of(file)}, but attention takes 2, 3 or 4 axes.",
                hint="n d, or n_batch n d, or n_batch n_head n d",
            )
        if len(file.shape) != len(files[0].shape):
            raise SizeError(
                f"{called(file)} has {len(file.shape)} axes ({shape_of(file)}), but {called(files[0])}"
                " has"
                f" {len(files[0].shape)} ({shape_of(files[0])}).",
            )
    return len(files[0].shape) if files else None


def _learn_from_masks(
    sizes: Sizes, masks: Sequence[TensorFile], new: str, lead: list[str], *, columns: bool = False
) -> None:
    """Learn sizes from masks if nothing else determines them; their fit is checked later."""
    for file in masks:
        shape = file.shape
        if not 1 <= len(shape) <= 4 or 0 in shape:
            continue
        n_Q, n_K = (1, *shape)[-2:]
        if columns and len(shape) > 1:
            n_Q, n_K = n_K, n_Q
        mask_sizes = {"n_Q": n_Q, new: n_K}
        if new == "n_new":
            mask_sizes[new] -= sizes.get("n_past", n_K)
        if len(shape) > 2 and lead:
            mask_sizes["n_batch"] = shape[0]
        for axis, size in mask_sizes.items():
            if axis not in sizes and size > 1:
                sizes.learn(axis, size, f"{called(file)} is {shape_of(file)}")


def _filled(sizes: Sizes, defaults: Mapping[str, int]) -> dict[str, int]:
    """Complete the sizes with defaults, and with n_K: the keys of the past and the new ones."""
    filled = {axis: sizes.get(axis, size) for axis, size in defaults.items()}
    if "n_new" in filled:
        filled["n_K"] = filled["n_past"] + filled.pop("n_new")
    return filled
