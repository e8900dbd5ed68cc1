"""Options that do nothing here, or do not go together: warnings with a next step."""

from __future__ import annotations

from collections.abc import Iterator

from dscalc.answers.case import Case
from dscalc.answers.envelope import Warning


def cautions(case: Case) -> Iterator[Warning]:
    """Warnings about a question, whatever its answer.

    Args:
        case: the question.

    Yields:
        Warnings.
    """
    spec, shape, given = case.layout.spec, case.model.shape, case.given
    if case.counts.mtp:
        yield Warning(
            "mtp_left_out",
            f"left out: {case.counts.mtp:,} parameters of the multi-token-prediction module",
            "18 bytes each if trained: add them by hand, or train without the module",
        )
    held = -(-shape.layers // spec.pp)
    if spec.recompute_layers is not None and spec.recompute_layers > held:
        yield Warning(
            "recompute_layers_above_stage",
            f"--recompute-layers {spec.recompute_layers} is more than the {held} layers of a stage: all are recomputed",
            f"give at most {held}, or --recompute full alone",
        )
    if given.get("no_sync") and spec.zero < 2:
        yield Warning(
            "no_sync_does_nothing",
            f"--no-sync changes nothing at ZeRO-{spec.zero}: gradients are whole on every rank and reduced once a step",
            "drop --no-sync, or use --zero 2 or 3",
        )
    if "capacity_factor" in given and not shape.experts:
        yield Warning(
            "capacity_factor_without_experts",
            "--capacity-factor changes nothing: the model has no experts",
            "drop it, or give a model with experts",
        )
    if "parameters" in spec.offload and spec.zero < 3:
        yield Warning(
            "offload_parameters_below_zero3",
            f"--offload parameters belongs to ZeRO-3, and the layout has ZeRO-{spec.zero}",
            "add --zero 3, or offload the optimizer only",
        )
    if spec.optimizer_in_backward and spec.grad_accum > 1:
        yield Warning(
            "no_accumulation_in_backward",
            f"--optimizer-in-backward steps after each backward; {spec.grad_accum} micro-batches cannot accumulate",
            "use --grad-accum 1, or drop --optimizer-in-backward",
        )
    gpu, cluster = case.machine.gpu, case.machine.cluster
    if gpu is not None and gpu.dtypes and spec.precision not in gpu.dtypes:
        yield Warning(
            "precision_not_supported",
            f"{gpu.id} has no {spec.precision} matrix products; its profile has {', '.join(gpu.dtypes)}",
            f"give --precision {'fp16' if 'fp16' in gpu.dtypes else gpu.dtypes[0]}, or another GPU",
        )
    inside = given.get("gpus_per_node")
    if cluster is not None and inside is not None and inside != cluster.gpus_per_node:
        yield Warning(
            "gpus_per_node_differs",
            f"--gpus-per-node {inside}, but a node of {cluster.id} has {cluster.gpus_per_node} GPUs",
            "drop one of the two",
        )
