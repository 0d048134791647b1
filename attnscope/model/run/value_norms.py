"""Measure what a key's value contributes to a layer's output: ‖v_j W_O^h‖ for each head and key.

A head adds Σ_j α_ij v_j W_O^h to its layer's output, so ‖α_ij v_j W_O^h‖ = α_ij ‖v_j W_O^h‖ is the size
of what query i takes from key j. Source: Kobayashi et al. 2020, "Attention is Not Only a Weight:
Analyzing Transformers with Vector Norms", whose f(x) is (x W_V + b_V) W_O.

Nothing is known of a model's class. The output projection is the module that reads what the heads put
out (`output_projection`), and every run is checked: this module's input must be the heads' outputs side
by side, and its output their products with the slices of its matrix, plus its bias.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from attnscope.base.arrays import largest_difference
from attnscope.base.errors import ModelError
from attnscope.base.spelling import spelled
from attnscope.model.run.attention_hook import AttentionInputs
from attnscope.model.run.output_projection import OutputProjection, output_projections

if TYPE_CHECKING:
    import torch

AT_ONCE = 2**22
"""The number of values v_j W_O^h that are in memory at once: 16 MiB of float32."""


def unweighed() -> str:
    """Return the hint of errors about values whose norms are not known."""
    return f"without {spelled('weigh')}, the weights themselves"


@dataclass(frozen=True)
class OutputMatrix:
    """The matrix of a layer's output projection, divided by heads."""

    name: str
    #: W_O, `n_head d_V d_feat`: a head's output is multiplied by its slice from the right.
    matrix: torch.Tensor
    #: b_O, `d_feat`, or None.
    bias: torch.Tensor | None


class UnreadableMatrixError(Exception):
    """A module's matrix cannot be read; the text is the reason."""


class NotProjectedError(Exception):
    """An output projection did something else than multiply heads' outputs; the text is the reason."""


def output_matrix(module: Any, projection: OutputProjection) -> OutputMatrix:
    """Return the matrix of an output projection by heads."""
    from torch.nn import Linear
    from transformers.pytorch_utils import Conv1D

    kind = type(module)
    if kind not in (Linear, Conv1D):
        raise UnreadableMatrixError(
            f"its output projection is a {kind.__name__}, whose matrix is not known to be read"
        )
    stored = module.weight.detach()
    if not stored.is_floating_point() or stored.is_meta:
        where = "on another device" if stored.is_meta else f"{stored.dtype}".removeprefix("torch.")
        raise UnreadableMatrixError(f"the weights of its output projection are {where}")
    whole = stored if kind is Conv1D else stored.T  # [n_head · d_V, d_feat]
    matrix = whole.unflatten(0, (projection.n_head, projection.d_V))
    bias = None if module.bias is None else module.bias.detach()
    return OutputMatrix(projection.name, matrix, bias)


def value_norms(value: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    """Return ‖v_j W_O^h‖, `n_batch n_head n_K`, in float32 at least.

    Args:
        value: `n_batch n_kv_head n_K d_V`, with the bias of its projection; a group of adjacent query
            heads shares each.
        matrix: W_O, `n_head d_V d_feat`.
    """
    import torch

    n_batch, n_kv_head, n_K, _ = value.shape
    n_head, _, d_feat = matrix.shape
    dtype = torch.promote_types(value.dtype, torch.float32)
    norms = value.new_empty(n_batch, n_head, n_K, dtype=dtype)
    keys = max(1, AT_ONCE // (n_batch * d_feat))
    for head in range(n_head):
        of_head = matrix[head].to(value.device, dtype)
        of_group = value[:, head // (n_head // n_kv_head)]
        for start in range(0, n_K, keys):
            part = slice(start, start + keys)
            norms[:, head, part] = (of_group[:, part].to(dtype) @ of_head).norm(dim=-1)
    return norms


def checked(norms: ValueNorms | None) -> AbstractContextManager[None]:
    """Check the runs within a block that use norms of values, if there are any; see `ValueNorms`."""
    return nullcontext() if norms is None else norms.checked()


class ValueNorms:
    """The norms ‖v_j W_O^h‖ in the layers of a model, and checks of every run that they are used in.

    Attributes:
        notice: a sentence about what a layer does with what its output projection puts out; or None.
        difference, tolerance: the largest difference of Σ_h x_h W_O^h + b_O from what an output
            projection put out in checked runs, and the largest there that rounding explains.
    """

    def __init__(self, name: str, model: Any, run: Callable[[], Any]) -> None:
        import torch

        self.name, self.model = name, model
        self.difference = self.tolerance = 0.0
        with torch.no_grad():
            calls, projections = output_projections(model, run)
            behind = norms_behind(model, [each.name for each in projections.values()], run)
        self.notice = None
        if behind:
            self.notice = (
                f"{behind[0]} rescales what the heads of {name} add up to, behind W_O: value-weighted"
                " numbers leave it out."
            )
        self._matrices: dict[str, OutputMatrix] = {}
        self._reasons: dict[str, str] = {}  # why a layer has no matrix, by its path
        # by module: the layer, its heads' outputs
        self._expected: dict[str, tuple[str, torch.Tensor]] = {}
        for path in dict.fromkeys(call.path for call in calls):
            if path not in projections:
                self._reasons[path] = (
                    "what its heads put out is not read by one known matrix alone, as with adapters"
                    " that are not merged and with quantized weights"
                )
                continue
            try:
                module = model.get_submodule(projections[path].name)
                self._matrices[path] = output_matrix(module, projections[path])
            except UnreadableMatrixError as error:
                self._reasons[path] = str(error)

    def of(self, inputs: AttentionInputs) -> torch.Tensor:
        """Return ‖v_j W_O^h‖ for one layer's attention, `n_batch n_head n_K`."""
        if inputs.path not in self._matrices:
            reason = self._reasons.get(inputs.path, "its attention was not found in a run on few tokens")
            raise self._error(inputs.path, reason)
        return value_norms(inputs.value, self._matrices[inputs.path].matrix)

    def expect(self, path: str, output: torch.Tensor) -> None:
        """Check in this run that a layer's output projection reads what its heads put out.

        Args:
            output: what its heads put out, `n_batch n_Q n_head d_V`.
        """
        self._expected[self._matrices[path].name] = path, output

    @contextmanager
    def checked(self) -> Iterator[None]:
        """Compare the input and the output of each expected output projection in the runs within."""
        failures: list[ModelError] = []

        def check(name: str, module: Any, arguments: Any, options: Any, y: Any) -> None:
            if name not in self._expected:
                return
            path, output = self._expected.pop(name)
            x = arguments[0] if arguments else next(iter(options.values()))
            try:
                difference, tolerance = check_projected(self._matrices[path], output, x, y)
            except NotProjectedError as error:
                failures.append(self._error(path, str(error)))
                raise failures[0] from None
            if difference >= self.difference:
                self.difference, self.tolerance = difference, tolerance

        self._expected.clear()
        with ExitStack() as hooks:
            for name in {each.name for each in self._matrices.values()}:
                module = self.model.get_submodule(name)
                hook = module.register_forward_hook(partial(check, name), with_kwargs=True)
                hooks.callback(hook.remove)
            try:
                yield
            except Exception:
                if failures:
                    raise failures[0] from None
                raise
        for path, _ in self._expected.values():
            raise self._error(path, "its output projection did not run")

    def _error(self, path: str, reason: str) -> ModelError:
        return ModelError(
            f"the maps of {self.name} cannot be weighed by values: in {path}, {reason}.",
            hint=unweighed(),
        )


def norms_behind(model: Any, projections: Collection[str], run: Callable[[], Any]) -> list[str]:
    """Return the names of the norms that read what output projections put out, and nothing else."""
    outputs: dict[int, tuple[Any, int]] = {}  # by address: kept, so that no other tensor gets its place
    found: list[str] = []

    def keep(module: Any, arguments: Any, output: Any) -> None:
        if hasattr(output, "data_ptr"):
            outputs[output.data_ptr()] = output, output._version

    def read(name: str) -> Any:
        def hook(module: Any, arguments: tuple[Any, ...]) -> None:
            for x in arguments[:1]:
                output, version = outputs.get(x.data_ptr(), (None, 0))
                if output is not None and x.shape == output.shape and output._version == version:
                    found.append(name)

        return hook

    with ExitStack() as hooks:
        for name in set(projections):
            hooks.callback(model.get_submodule(name).register_forward_hook(keep).remove)
        for name, module in model.named_modules():
            if is_norm(module):
                hooks.callback(module.register_forward_pre_hook(read(name)).remove)
        run()
    return found


def is_norm(module: Any) -> bool:
    """Check by its name, and by its parameters, whether a module is a norm."""
    shapes = [parameter.dim() for parameter in module.parameters()]
    return "norm" in type(module).__name__.lower() and all(n == 1 for n in shapes)


def check_projected(
    known: OutputMatrix, output: torch.Tensor, x: torch.Tensor, y: torch.Tensor
) -> tuple[float, float]:
    """Check that an output projection multiplied what its heads put out by a matrix, and added a bias.

    Args:
        output: what the heads put out, `n_batch n_Q n_head d_V`.
        x, y: the module's input and its output; their last axes are `n_head·d_V` and `d_feat`.

    Returns:
        The largest difference from its output, and the largest that rounding explains.
    """
    import torch

    n_head, d_V, d_feat = known.matrix.shape
    if x.numel() != output.numel() or x.shape[-1] != n_head * d_V:
        raise NotProjectedError("its output projection reads something other than its heads' outputs")
    heads, own = x.reshape(-1, n_head * d_V), output.to(x.device).reshape(-1, n_head * d_V)
    eps = torch.finfo(x.dtype).eps
    largest = float(own.nan_to_num(0.0).abs().max())  # a query without visible keys may have NaN
    if not largest_difference(heads, own.to(x.dtype)) <= 4 * eps * largest:
        raise NotProjectedError(
            "what enters its output projection is not what its heads put out: a gate or a norm stands"
            " between"
        )
    dtype = torch.promote_types(x.dtype, torch.float32)
    whole = known.matrix.to(x.device, dtype).flatten(0, 1)
    bias = 0 if known.bias is None else known.bias.to(x.device, dtype)
    narrow, single = torch.finfo(y.dtype).eps, torch.finfo(dtype).eps
    of_queries = own.to(dtype).nan_to_num(0.0).norm(dim=-1)
    products = float(of_queries.max() * whole.norm(dim=0).max())  # Cauchy-Schwarz: |x_i · w| at most
    tolerance = 4 * narrow * float(y.nan_to_num(0.0).abs().max()) + 16 * single * products
    rows, largest = max(1, AT_ONCE // d_feat), 0.0
    for start in range(0, len(heads), rows):
        part = slice(start, start + rows)
        computed = heads[part].to(dtype) @ whole + bias
        difference = largest_difference(computed, y.reshape(-1, d_feat)[part].to(dtype))
        if not difference <= tolerance:
            raise NotProjectedError(
                "Σ_h x_h W_O^h + b_O is not what its output projection put out: they differ by"
                f" {difference:.2g}"
            )
        largest = max(largest, difference)
    return largest, tolerance
