"""The plan and the call of multi-head attention."""

from __future__ import annotations

from dataclasses import replace

from attnscope.attention.mask_rules import Masks
from attnscope.base.bounds import check_dropout
from attnscope.base.dtypes import FLOATS
from attnscope.base.errors import OptionError, warn_unused
from attnscope.base.options import Distribution, keywords, one_of
from attnscope.base.spelling import spelled
from attnscope.document.result import Finding
from attnscope.formula.computation import Computation, TextbookCall
from attnscope.formula.inputs.layer import CheckpointLayer, open_layer
from attnscope.formula.inputs.modules import has_biases, module_of, numbers_in
from attnscope.formula.inputs.resolve import RunInputs, inputs_of_mha, open_tensors
from attnscope.formula.options import (
    Masking,
    MhaScale,
    MhaSizes,
    MhaTensors,
    RunOptions,
    ScaleBy,
    Stages,
    Training,
)
from attnscope.formula.variants import Variants, variants_of
from attnscope.observe import contracts
from attnscope.observe.trace import Trace

CODE = ("attnscope.attention.mha", "MultiHeadAttention.forward")


def mha_computation(
    sizes: MhaSizes,
    tensors: MhaTensors,
    masking: Masking,
    scale: MhaScale,
    stages: Stages,
    training: Training,
    run: RunOptions,
) -> Computation:
    """Plan `mha`.

    Raises:
        AttnscopeError: options are invalid, or do not fit together.
    """
    layer = open_layer(tensors.weights, tensors.layer, tensors.stack)
    scale_by = one_of(ScaleBy, "scale_by", scale.scale_by)
    if layer is not None:
        masking, scale, stages = _of_layer(layer, masking, scale, stages)
    variants = variants_of(masking, scale, stages)
    dropout = _dropout(training)
    if scale.scale is not None and scale_by is not None:
        raise OptionError(
            f"{spelled('scale')} and {spelled('scale_by')} both set the scale.", hint="one of the two"
        )
    by_axis = {"n_batch": sizes.batch, "n_head": sizes.heads, "n_kv_head": sizes.kv_heads}
    by_axis |= {"n_Q": sizes.nq, "n_new": sizes.nk, "n_past": sizes.past or None}
    by_axis |= {"d_feat": sizes.d_feat, "d_head": sizes.d_head}
    by_axis |= {"d_V": sizes.d_value, "d_context": sizes.d_context}
    inputs, self_attention = inputs_of_mha(
        by_axis, open_tensors(keywords(tensors), layer), variants.masks.files, run.dtype, layer
    )
    inputs.distribution = one_of(Distribution, "draw", run.draw)
    masks = variants.masks_for(inputs.sizes, inputs.dtype)
    bias = has_biases(training.bias, inputs)

    plan = contracts.mha(
        inputs.sizes,
        dtype=inputs.dtype,
        self_attention=self_attention,
        v_is_k="V" not in inputs.files,
        variant=variants.contract(
            inputs.sizes,
            masks,
            scale=inputs.sizes["d_feat"] ** -0.5 if scale_by is ScaleBy.D_FEAT else scale.scale,
            dropout=dropout if training.train else 0.0,
        ),
    )
    plan.options = {} if layer is None else layer.described
    if scale.scale is not None:
        plan.options["scale"] = scale.scale
    else:
        by = scale_by or ScaleBy.D_HEAD
        plan.options |= {"scale": plan.sizes[by] ** -0.5, "scale_by": str(by)}
    plan.options |= {"attention": "self" if self_attention else "cross"}
    plan.options |= {"bias": bias, "dropout": dropout}
    plan.options |= {"mode": "train" if training.train else "eval"}
    plan.options |= variants.described(masks, inputs.dtype)
    plan.findings = [_wrong_scale(plan)] if scale_by is ScaleBy.D_FEAT else []
    if layer is not None and layer.limits is not None:
        plan.findings.append(Finding(layer.limits))

    drawn_inputs = {"Q"} | (set() if self_attention else {"K"})
    drawn_inputs |= {"K_past", "V_past"} if "n_past" in plan.sizes else set()
    drawn_inputs -= set(inputs.files)
    drawn_weights = {"W_Q", "W_K", "W_V", "W_O"} - set(inputs.files)
    return Computation(
        plan,
        lambda device: _calls(plan, inputs, variants, masks, device),
        masks,
        (CODE,),
        drawn=bool(drawn_inputs | drawn_weights) or (training.train and dropout > 0),
        drawn_inputs=drawn_inputs,
        weight_bytes=numbers_in(plan.sizes, bias) * FLOATS[inputs.dtype],
    )


def _of_layer(
    layer: CheckpointLayer, masking: Masking, scale: MhaScale, stages: Stages
) -> tuple[Masking, MhaScale, Stages]:
    """Return the options with those that a layer implies where the user chose nothing else."""
    formula = layer.formula
    if not masking.mask:
        masking = replace(masking, mask=layer.masks or None)
    if scale.scale is None and scale.scale_by is None:
        scale = replace(scale, scale=formula.scale)
    if stages.softcap is None:
        stages = replace(stages, softcap=formula.softcap)
    if stages.rope is None and formula.rope_theta is not None:
        stages = replace(stages, rope=True)
    if stages.rope and stages.rope_theta is None:
        stages = replace(stages, rope_theta=formula.rope_theta)
    return masking, scale, stages


def _dropout(training: Training) -> float:
    """Return the fraction of weights that training drops."""
    share = 0.1 if training.dropout is None else training.dropout
    check_dropout(share)
    idle = training.dropout is not None and not training.train
    warn_unused([(idle, "dropout", f"it is for training ({spelled('train')})")])
    return share


def _wrong_scale(plan: Trace) -> Finding:
    """Return the finding about scores that are divided by the root of the wrong width."""
    return Finding(
        f"the scores are divided by √d_feat = √{plan.sizes['d_feat']}, but Q and K are contracted over"
        f" d_head = {plan.sizes['d_head']}: √d_head keeps their variance near that of a single product."
    )


def _calls(
    plan: Trace, inputs: RunInputs, variants: Variants, masks: Masks, device: str
) -> list[TextbookCall]:
    """Return the call: a module of these sizes, with the user's weights or random ones."""
    shapes = {step.name: step.shape for step in plan.steps}
    self_attention = plan.options["attention"] == "self"
    tensors = {"Q": inputs.tensor("Q", shapes["Q"], device)}
    tensors["K"] = tensors["Q"] if self_attention else inputs.tensor("K", shapes["K"], device)
    tensors["V"] = inputs.tensor("V", shapes["V"], device) if "V" in inputs.files else tensors["K"]
    module = module_of(
        plan.sizes,
        inputs,
        plan.options["bias"],
        device,
        dropout=plan.options["dropout"],
        scale=plan.options["scale"],
        **variants.arguments(masks),
    )
    module.train(plan.options["mode"] == "train")
    for name in ("K_past", "V_past"):
        if name in shapes:
            tensors[name] = inputs.tensor(name, shapes[name], device)
    if masks:
        tensors["mask"] = masks.build(plan.sizes, inputs.dtype, device)
    return [TextbookCall(module, tensors, variants.of_sequences(masks))]
