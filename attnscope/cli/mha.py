"""`attnscope mha`: multi-head attention, of drawn tensors and weights or the user's own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from attnscope.cli import options
from attnscope.cli.options import RUN, VARIANT, Format, size, tensor
from attnscope.errors import OptionError

if TYPE_CHECKING:
    from attnscope.attention.mha import MultiHeadAttention
    from attnscope.cli.textbook import Call


class ScaleBy(StrEnum):
    """The width whose root divides the scores."""

    D_HEAD = "d_head"
    D_FEAT = "d_feat"


CODE = ("attnscope.attention.mha", "MultiHeadAttention.forward")


def mha(
    batch: Annotated[int | None, size("--batch", "n_batch: sequences.", 128)] = None,
    nq: Annotated[int | None, size("--nq", "n_Q: queries.", 32)] = None,
    nk: Annotated[
        int | None,
        size("--nk", "n_K: keys, from a source of their own; without it Q attends to itself."),
    ] = None,
    d_feat: Annotated[int | None, size("--d-feat", "d_feat: the model's width.", 200)] = None,
    heads: Annotated[int | None, size("--heads", "n_head: heads; must divide d_feat.", 5)] = None,
    kv_heads: options.KVHeads = None,
    past: options.Past = None,
    d_value: Annotated[int | None, size("--d-value", "d_V: width of a head's value.", "d_head")] = None,
    d_context: Annotated[
        int | None, size("--d-context", "Width of what K and V come from, if not d_feat.", "d_feat")
    ] = None,
    x: Annotated[str | None, tensor("--x", "Q, K and V in one: n_batch n d_feat.")] = None,
    q: Annotated[
        str | None,
        tensor(
            "--q",
            "Q, before its projection: n_batch n_Q d_feat. .npy, .npz, .pt, .safetensors; FILE:NAME.",
        ),
    ] = None,
    k: Annotated[str | None, tensor("--k", "K, before its projection; V too, without --v.")] = None,
    v: Annotated[str | None, tensor("--v", "V, before its projection.")] = None,
    past_k: options.FilePastK = None,
    past_v: options.FilePastV = None,
    weights: Annotated[
        Path | None,
        tensor(
            "--weights", "All weights and biases: W_Q b_Q …, or as nn.MultiheadAttention names them."
        ),
    ] = None,
    wq: Annotated[
        str | None, tensor("--wq", "W_Q as nn.Linear has it, output × input; likewise:")
    ] = None,
    wk: Annotated[str | None, tensor("--wk", "W_K.")] = None,
    wv: Annotated[str | None, tensor("--wv", "W_V.")] = None,
    wo: Annotated[str | None, tensor("--wo", "W_O.")] = None,
    bq: Annotated[
        str | None, tensor("--bq", "b_Q. Biases that are not given are 0 if any weight is.")
    ] = None,
    bk: Annotated[str | None, tensor("--bk", "b_K.")] = None,
    bv: Annotated[str | None, tensor("--bv", "b_V.")] = None,
    bo: Annotated[str | None, tensor("--bo", "b_O.")] = None,
    mask: options.Mask = None,
    mask_style: options.Style = None,
    mask_fill: options.Fill = None,
    align: options.Align = None,
    masked_rows: options.Rows = None,
    scale: options.Scale = None,
    scale_by: Annotated[
        ScaleBy | None,
        typer.Option(
            "--scale-by",
            help="Divide scores by √d_head (right) or √d_feat (a well-known slip).",
            show_default="d_head",
            rich_help_panel=VARIANT,
        ),
    ] = None,
    softcap: options.Softcap = None,
    rope: options.Rope = False,
    rope_theta: options.RopeTheta = None,
    softmax_dtype: options.SoftmaxDType = None,
    bias: Annotated[
        bool | None,
        typer.Option(
            "--bias/--no-bias",
            help="Whether projections have biases.",
            show_default="bias",
            rich_help_panel=RUN,
        ),
    ] = None,
    dropout: Annotated[
        float | None,
        typer.Option(
            "--dropout",
            help="Share of attention weights zeroed in training.",
            show_default="0.1",
            rich_help_panel=RUN,
        ),
    ] = None,
    train: Annotated[
        bool,
        typer.Option("--train/--eval", help="Training, with dropout, or not.", rich_help_panel=RUN),
    ] = False,
    seed: options.Seed = None,
    dtype: options.DType = None,
    device: options.Device = "cpu",
    dry_run: options.DryRun = False,
    verify: options.Verify = False,
    explain: options.Explain = False,
    source: options.Source = False,
    numbers: options.Numbers = False,
    stats: options.Stats = False,
    show: options.Show = None,
    save: options.Save = None,
    force: options.Force = False,
    format: options.OutputFormat = Format.TABLE,
    wide: options.Wide = False,
) -> int:
    """Multi-head attention: projected, split into heads, attended, merged, projected."""
    from attnscope import contracts
    from attnscope.cli.output import Output
    from attnscope.cli.textbook import Call, Request, present
    from attnscope.cli.variants import Variants
    from attnscope.errors import warn_idle
    from attnscope.results.common import Finding
    from attnscope.textbook.inputs.modules import has_biases, module_of, numbers_in
    from attnscope.textbook.inputs.projections import open_projections
    from attnscope.textbook.inputs.resolve import given_to_mha, open_all

    sizes = {"n_batch": batch, "n_head": heads, "n_kv_head": kv_heads, "n_Q": nq, "n_new": nk}
    sizes |= {"n_past": past, "d_feat": d_feat, "d_V": d_value, "d_context": d_context}
    asked = Variants(
        mask, mask_style, mask_fill, align, masked_rows, scale, softcap, rope, rope_theta, softmax_dtype
    )
    asked.check()
    share = 0.1 if dropout is None else dropout
    if not 0 <= share <= 1:
        raise OptionError(f"dropout is {share}, but a share is between 0 and 1.", hint="--dropout 0.1")
    warn_idle([(dropout is not None and not train, "--dropout", "it is for training (--train)")])
    if scale is not None and scale_by is not None:
        raise OptionError("--scale says it all, and --scale-by too.", hint="one of the two")

    files = {"X": x, "Q": q, "K": k, "V": v, "K_past": past_k, "V_past": past_v}
    projections = {
        "W_Q": wq,
        "W_K": wk,
        "W_V": wv,
        "W_O": wo,
        "b_Q": bq,
        "b_K": bk,
        "b_V": bv,
        "b_O": bo,
    }
    opened = open_all(files) | open_projections(weights, open_all(projections))
    given, itself = given_to_mha(sizes, opened, asked.masks.files, dtype)
    masks = asked.resolved(given.sizes, given.dtype)
    has_bias = has_biases(bias, given)

    dropping = share if train else 0.0
    chosen = given.sizes["d_feat"] ** -0.5 if scale_by is ScaleBy.D_FEAT else scale
    plan = contracts.mha(
        given.sizes,
        dtype=given.dtype,
        self_attention=itself,
        v_is_k="V" not in given.files,
        variant=asked.contract(given.sizes, masks, dropout=dropping, scale=chosen),
    )
    by = scale_by or ScaleBy.D_HEAD
    plan.options = (
        {"scale": plan.sizes[by] ** -0.5, "scale_by": str(by)} if scale is None else {"scale": scale}
    )
    plan.options |= {"attention": "self" if itself else "cross", "bias": has_bias, "dropout": share}
    plan.options |= {"mode": "train" if train else "eval"} | asked.described(masks, given.dtype)
    if scale_by is ScaleBy.D_FEAT:
        plan.findings = [
            Finding(
                f"the scores are divided by √d_feat = √{plan.sizes['d_feat']}, but Q and K are"
                " multiplied over"
                f" d_head = {plan.sizes['d_head']}: √d_head keeps their variance at that of one product."
            )
        ]

    everything = {"Q"} | (set() if itself else {"K"}) | {"W_Q", "W_K", "W_V", "W_O"}
    everything |= {"K_past", "V_past"} if "n_past" in plan.sizes else set()
    drawn = not everything <= set(given.files) or dropping > 0
    request = Request(
        Output(format, wide, show or (), save, force),
        dry_run=dry_run,
        stats=stats,
        verify=verify,
        explain=explain,
        source=source,
        numbers=numbers,
        device=device,
        seed=(seed or 0) if drawn else None,
        seed_given=seed is not None,
    )
    request.check(given.dtype)
    modules: list[MultiHeadAttention] = []

    def prepare() -> list[Call]:
        import torch

        torch.manual_seed(seed or 0)
        shapes = {step.name: step.shape for step in plan.steps}
        inputs = {"Q": given.tensor("Q", shapes["Q"], device)}
        inputs["K"] = inputs["Q"] if itself else given.tensor("K", shapes["K"], device)
        inputs["V"] = given.tensor("V", shapes["V"], device) if "V" in given.files else inputs["K"]
        module = module_of(
            plan.sizes,
            given,
            has_bias,
            device,
            dropout=share,
            scale=plan.options["scale"],
            **asked.arguments(masks),
        )
        modules.append(module.train(train))
        for name in ("K_past", "V_past"):
            if name in shapes:
                inputs[name] = given.tensor(name, shapes[name], device)
        if masks:
            inputs["mask"] = masks.build(plan.sizes, given.dtype, device)
        return [Call(modules[0], inputs)]

    return present(
        plan,
        prepare,
        request,
        masks=masks,
        code=[CODE],
        weight_bytes=numbers_in(plan.sizes, has_bias) * contracts.DTYPES[given.dtype],
        weights=lambda: dict(modules[0].state_dict()),
    )
