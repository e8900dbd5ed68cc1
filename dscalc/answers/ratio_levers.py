"""What would have to change for the ratio to be 1: tokens of a rank, bandwidth, bytes of a gradient."""

from __future__ import annotations

from dataclasses import replace
from math import ceil
from typing import NamedTuple

import numpy as np

from dscalc.answers.ratio_effects import times
from dscalc.answers.ratio_setting import Setting, wire
from dscalc.units import format_rate

HALF, SINGLE = 2.0, 4.0  # bytes of a 16-bit and of an fp32 gradient
SLACK = 1e-9  # a quotient that is whole but for rounding


class Lever(NamedTuple):
    """A lever: what it is now, what it would have to be for ratio 1, what to type, and the ratio that gives."""

    lever: str
    now: float
    needed: float | None
    unit: str
    option: str
    ratio_then: float | None
    words: str


def levers(setting: Setting) -> list[Lever]:
    """Tokens, bandwidth and bytes, each alone.

    Args:
        setting: a question whose ranks communicate.

    Returns:
        The levers, each with the value at which the ratio would be 1.
    """
    exact = setting.ranks is not None
    found = times(setting, exact=exact)
    ratio = found.ratio
    if ratio is None:
        return []
    return [*_tokens(setting, ratio), _bandwidth(setting, found.compute_s, found.s, ratio), _bytes(setting, ratio)]


def _tokens(setting: Setting, ratio: float) -> list[Lever]:
    spec = setting.case.layout.spec
    tokens = float(spec.tokens_per_rank)
    needed = tokens / ratio
    if setting.in_tokens or ratio >= 1.0:
        option = "" if ratio >= 1.0 else f"--tokens-per-rank {ceil(needed * (1.0 - SLACK))}"
        words = "fewer tokens a rank would do" if ratio >= 1.0 else f"{option}: larger micro-batches, or more of them"
        return [Lever("D", tokens, needed, "tokens", option, 1.0, words)]
    micro, accum = spec.micro_batch, spec.grad_accum
    larger = ceil(micro / ratio * (1.0 - SLACK))
    found = [
        Lever(
            "D",
            float(micro),
            float(larger),
            "sequences",
            f"--micro-batch {larger}",
            ratio * larger / micro,
            f"--micro-batch {larger} instead of {micro}; activations grow with it",
        )
    ]
    if spec.zero < 2 or (spec.zero == 2 and spec.no_sync):
        more = ceil(accum / ratio * (1.0 - SLACK))
        found.append(
            Lever(
                "D",
                float(accum),
                float(more),
                "micro-batches",
                f"--grad-accum {more}",
                ratio * more / accum,
                f"--grad-accum {more} instead of {accum}; takes no memory",
            )
        )
    return found


def _bandwidth(setting: Setting, compute_s: float, communicate_s: float, ratio: float) -> Lever:
    now = setting.bandwidth.value if setting.bandwidth else 0.0
    waiting = float(
        np.asarray(2.0 * ((setting.ranks or 1) - 1) * setting.traffic.latency_s).reshape(-1)[0]
    )  # does not shrink with bandwidth
    room = compute_s - waiting
    if room <= 0.0:
        return Lever("BW", now, None, "bytes/s", "", None, "latency alone takes longer than computing")
    needed = now * (communicate_s - waiting) / room
    said = format_rate(needed).replace(" ", "")
    words = "a slower link would do" if ratio >= 1.0 else f"--bandwidth {said}: more or faster network ports"
    return Lever("BW", now, needed, "bytes/s", "" if ratio >= 1.0 else f"--bandwidth {said}", 1.0, words)


def _bytes(setting: Setting, ratio: float) -> Lever:
    now = setting.gradient_bytes
    other = SINGLE if ratio >= 1.0 else HALF if now > HALF else now / 2.0
    then = _ratio_at(setting, other)
    needed = _solve(setting, now, ratio, other, then)
    if ratio >= 1.0:
        if now >= SINGLE:
            return Lever("b_r", now, needed, "bytes", "", None, "wide gradients are affordable")
        fits = "can hide too" if then is not None and then >= 1.0 else "would not hide"
        return Lever(
            "b_r",
            now,
            needed,
            "bytes",
            f"--gradient-bytes {SINGLE:g}",
            then,
            f"--gradient-bytes {SINGLE:g}: fp32 {fits}",
        )
    if now > HALF:
        words = f"--gradient-bytes {HALF:g}: fp16/bf16 instead of fp32 gradients"
        return Lever("b_r", now, needed, "bytes", f"--gradient-bytes {HALF:g}", then, words)
    words = f"--gradient-bytes {other:g}: compressed gradients, which changes the arithmetic"
    return Lever("b_r", now, needed, "bytes", f"--gradient-bytes {other:g}", then, words)


def _ratio_at(setting: Setting, gradient: float) -> float | None:
    changed = replace(
        setting.traffic,
        gradient_bytes=np.array([gradient]),
        wire_bytes=wire(setting.case, gradient, setting.weight_bytes),
    )
    return times(setting, exact=setting.ranks is not None, traffic=changed).ratio


def _solve(setting: Setting, now: float, ratio: float, other: float, then: float | None) -> float | None:
    """Bytes at ratio 1: the time sent is linear in them; None where the weights alone already wait."""
    if then is None or other == now:
        return now * ratio if setting.case.layout.spec.zero == 0 else None
    slope = (1.0 / ratio - 1.0 / then) / (now - other)
    start = 1.0 / ratio - slope * now
    return (1.0 - start) / slope if slope > 0.0 and start < 1.0 else None
