"""What to tell the reader beside the numbers: illegal layouts, and warnings with a next step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from dscalc.answers.case import Case
from dscalc.answers.envelope import Warning
from dscalc.cost.evaluate import Evaluation
from dscalc.errors import InputError
from dscalc.specs.layout_spec import LayoutSpec
from dscalc.specs.stack import entries
from dscalc.units import format_bytes

if TYPE_CHECKING:
    from dscalc.answers.memory import MemoryAnswer


def refuse_illegal(found: Evaluation, case: Case) -> None:
    """Refuse a layout that breaks a rule of its axes.

    Raises:
        InputError: names the option and the numbers that do not go together.
    """
    for name, message, mask in zip(found.reasons.names, found.reasons.messages, found.reasons.masks, strict=True):
        if name != "memory" and np.asarray(mask).reshape(-1)[0]:
            found_flag = re.search(r"--[a-z-]+", message)
            where = found_flag[0] if found_flag else None
            text = message.removeprefix(f"{where} ")
            raise InputError(f"{text} ({_numbers(message, case)})", where=where)


def _numbers(message: str, case: Case) -> str:
    """The values of everything a rule speaks of."""
    spec, shape = case.layout.spec, case.model.shape
    parts: list[str] = []
    for flag in dict.fromkeys(re.findall(r"--[a-z-]+", message)):
        name = flag[2:].replace("-", "_")
        if name in LayoutSpec.model_fields:
            parts.append(f"{flag} is {getattr(spec, name)}")
    for words, value in (
        ("attention heads", shape.heads),
        ("key/value heads", shape.kv_heads),
        ("heads of a", shape.heads),
        ("MLP width", shape.ffn_hidden),
        ("number of layers", shape.layers),
        ("number of experts", shape.experts),
        ("micro-batches", spec.grad_accum),
        ("model with experts", shape.experts),
    ):
        if words in message:
            what = {"model with experts": "experts", "heads of a": "attention heads"}.get(
                words, words.removeprefix("number of ")
            )
            parts.append(f"{what}: {value}")
    if "tp * cp * dp" in message:
        parts.append(f"tp * cp * dp = {spec.tp * spec.cp * spec.dp}")
    return ", ".join(parts) or "see dscalc memory --help"


def warnings_of(found: MemoryAnswer) -> Iterator[Warning]:
    """Warnings about an answer, the gravest first."""
    spec = found.case.layout.spec
    gpu = found.case.machine.gpu
    if found.fits is False and found.usable_bytes is not None:
        over = found.usable_bytes - (found.headroom_bytes or 0.0)
        best = found.next_knob
        step = f"try {best.option} ({best.cost})" if best else "combine several of these, or use more or larger GPUs"
        yield Warning("does_not_fit", f"needs {format_bytes(over)} of {format_bytes(found.usable_bytes)}", step)
    elif (
        found.fits and found.headroom_bytes is not None and found.headroom_bytes < found.high_bytes - found.total_bytes
    ):
        yield Warning(
            "narrow_fit",
            f"fits with {format_bytes(found.headroom_bytes)} to spare, less than the uncertainty of the estimate",
            "leave more room, or measure one step before reserving the machines",
        )
    if gpu is not None and found.usable_bytes is None:
        yield Warning(
            "memory_unknown",
            f"the profile of {gpu.id} does not say how much memory a program can use",
            "name the exact variant, or add usable_memory to a profile and pass --profile",
        )
    if spec.zero > 0 and spec.dp_shard * spec.cp == 1 and spec.ep == 1:
        yield Warning(
            "zero_without_dp",
            f"ZeRO-{spec.zero} with one data-parallel rank shards nothing",
            "raise --gpus or --dp, or drop --zero",
        )
    node = float(found.case.machine.record.gpus_per_node[0])
    if spec.tp > node:
        yield Warning(
            "tp_across_nodes",
            f"--tp {spec.tp} reaches over nodes of {int(node)} GPUs: collectives in every layer cross the network",
            f"keep --tp at {int(node)} or below and raise --pp or --dp",
        )
    if not entries("stacks")[spec.stack].values.get("measured", False):
        yield Warning(
            "stack_ledger_assumed",
            f"what {spec.stack} keeps was read in its source; no open measurement confirms it here",
            "compare one run's torch.cuda.max_memory_allocated() with `allocated`",
        )
    host = float(found.case.machine.record.host_bytes[0])
    if found.host_bytes_per_node is not None and found.host_bytes_per_node > host:
        yield Warning(
            "host_memory",
            f"a host needs {format_bytes(found.host_bytes_per_node)} of {format_bytes(host)}",
            "offload less, or use hosts with more memory",
        )
