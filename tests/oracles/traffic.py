"""Quantities of communication that evidence rows name: plain numbers in, one number out, every formula dscalc's own."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dscalc.cost.communication import communication
from dscalc.cost.geometry import place
from dscalc.cost.trace import example_gradients, ring_trace
from dscalc.specs.network import plain_network
from tests.cost import helpers


def sent_bytes(
    params: float,
    dp: int = 1,
    tp: int = 1,
    cp: int = 1,
    pp: int = 1,
    zero: int = 0,
    n_micro: int = 1,
    seq_len: int = 1024,
    micro_batch: int = 1,
    sequence_parallel: bool = False,
    gradient_bytes: float = 2.0,
    axis: str = "dp",
    schedule: str = "1f1b",
) -> float:
    """What one GPU sends in a step along one axis; of tensor parallelism inside layers only, which are 32 of h 4096."""
    shape = replace(helpers.SEVEN_BILLION, stated_params=int(params))
    columns = helpers.layouts(
        helpers.books(),
        dp=dp,
        tp=tp,
        cp=cp,
        pp=pp,
        zero=zero,
        n_micro=n_micro,
        seq_len=seq_len,
        micro_batch=micro_batch,
        sequence_parallel=sequence_parallel,
        schedule=schedule,
    )
    found = communication(shape, columns, plain_network(1.0), gradient_bytes=np.array([gradient_bytes]))
    return sum(
        float(c.traffic_bytes[0])
        for c in found
        if c.transfer.axis == axis and (axis != "tp" or c.transfer.stage == "every")
    )


def seconds(params: float, dp: int, bandwidth: float, gradient_bytes: float = 2.0, naive: bool = False) -> float:
    """Time of the gradient's all-reduce on one tier without latency."""
    shape = replace(helpers.SEVEN_BILLION, stated_params=int(params))
    columns = helpers.layouts(dp=dp)
    found = communication(shape, columns, plain_network(bandwidth), gradient_bytes=np.array([gradient_bytes]))
    return sum(float((c.naive_time_s if naive else c.time_s)[0]) for c in found)


def members(group: float, stride: float, domain: float) -> list[float]:
    """Members of the worst-placed group in a domain, domains crossed, 1 where groups straddle."""
    at = place(np.array([group]), np.array([stride]), np.array([domain]))
    return [float(at.inside[0]), float(at.domains[0]), float(at.misaligned[0])]


def two_workers(mean: bool) -> list[float]:
    """What two workers with [0.4, -0.2] and [0.8, 0.6] hold after the ring, rounded as a person writes it."""
    trace = ring_trace(example_gradients(2), 4.0)
    return [round(float(x), 12) for x in (trace.mean if mean else trace.total)]
