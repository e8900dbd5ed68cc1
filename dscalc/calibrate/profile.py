"""The profile that a calibration writes: a cluster's file with what was measured in it, each number with its source."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from dscalc.calibrate.fit import Calibration, Fit
from dscalc.calibrate.fit_compute import Gemm
from dscalc.calibrate.fit_line import Value
from dscalc.calibrate.series import Series
from dscalc.calibrate.tier_rates import TierFit, tier_factors
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.calibrated import ABOVE_PEAK
from dscalc.specs.cluster import ClusterSpec
from dscalc.specs.hardware import DTYPES, GpuSpec
from dscalc.specs.links import InterconnectSpec
from dscalc.specs.measured import lower_curves
from dscalc.specs.network import inner_tier, lower_network
from dscalc.units import MICRO, format_rate

DIGITS = 6
PERCENT = 100.0
FACTORS = ("compute_factor", "attention_factor", "host_factor", "communication_factor")
LEFT_BEHIND = ("aliases", "busbw", "small_messages", "notes", "checked", "source", "collectives", "sustained")
UNSAID = "bf16"  # what a benchmark multiplied where its log does not say
WHOLE = 1.0  # of the wire: no efficiency is more


@dataclass(frozen=True, slots=True)
class Base:
    """What a calibration starts from.

    Attributes:
        gpu: the GPU measured.
        gpus_per_node: GPUs of one node [count].
        cluster: a profile to start from; None: nodes of that GPU.
        interconnect: what joins nodes, where no cluster says.
        nics_per_node: NICs of one node [count]; None: one for each GPU.
    """

    gpu: GpuSpec
    gpus_per_node: int
    cluster: ClusterSpec | None
    interconnect: InterconnectSpec | None = None
    nics_per_node: int | None = None


def _round(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def quantity(
    value: float, unit: str, source: str, *, kind: str = "fitted", stderr: float | None = None, n: int | None = None
) -> dict[str, Any]:
    """One number of a profile.

    Args:
        value: the number [``unit``].
        unit: its unit.
        source: where it comes from.
        kind: as in :class:`dscalc.specs.quantity.Quantity`.
        stderr: its standard error [``unit``].
        n: measurements behind it [count].

    Returns:
        The record as JSON has it.
    """
    found: dict[str, Any] = {"value": _round(value), "unit": unit, "kind": kind, "source": source}
    if stderr is not None:
        found["stderr"] = _round(stderr)
    if n is not None:
        found["n"] = n
    return found


def fraction(value: float, source: str, stderr: float | None = None, n: int | None = None) -> dict[str, Any]:
    """A share as profiles hold it, in per cent."""
    return quantity(PERCENT * value, "%", source, stderr=None if stderr is None else PERCENT * stderr, n=n)


def _plain(record: object) -> Any:
    """A profile's record as JSON has it; what is empty is left out."""
    if hasattr(record, "model_dump"):
        return {k: _plain(v) for k, v in record.model_dump().items() if v is not None and v != ()}
    if isinstance(record, tuple):
        return [_plain(item) for item in record]
    return int(record) if isinstance(record, float) and record.is_integer() else record


def curve_record(fit: Fit) -> dict[str, Any]:
    """One measured curve as a profile holds it."""
    series = fit.series
    pieces = [
        {k: v if isinstance(v, int) else _round(v) for k, v in line._asdict().items()} for line in fit.lines.pieces
    ]
    return {
        "op": series.key.op,
        "ranks": series.key.ranks,
        "nodes": series.key.nodes,
        "sizes": [float(size) for size in series.size_bytes],
        "size_unit": "B",
        "times": [_round(t / MICRO) for t in series.time_s.tolist()],
        "time_unit": "us",
        "error_fractions": [float(f"{e:.3g}") for e in fit.error.tolist()],
        "kind": "measured",
        "source": series.source,
        "n": series.cells,
        "groups": series.key.groups,
        "pieces": pieces,
    }


def _first_tiers(base: Base, fits: Sequence[Fit]) -> list[dict[str, Any]]:
    """Tiers of a cluster that nobody described: the GPU's link inside, outside what was given or else measured."""
    across = [fit.series for fit in fits if fit.series.key.nodes > 1]
    if base.interconnect is None and not across:
        return []
    inside = base.gpus_per_node > 1
    tiers = [_plain(inner_tier(base.gpu, base.gpus_per_node, ())[0])] if inside else []
    if base.interconnect is not None:
        nics = base.nics_per_node or base.gpus_per_node
        rate = base.interconnect.bytes_per_s * nics / base.gpus_per_node
        named, why = base.interconnect.id, f"{base.interconnect.id}, {nics} NICs for {base.gpus_per_node} GPUs"
        kind = base.interconnect.bandwidth.kind if base.nics_per_node else "assumed"
        tiers.append({"name": "network", "interconnect": named, "bandwidth": quantity(rate, "B/s", why, kind=kind)})
        return tiers
    rate, source = max((_least_rate(series), series.source) for series in across)
    tiers.append({"name": "network", **_measured_rate(rate, f"largest message of {source}")})
    return tiers


def _least_rate(series: Series) -> float:
    """What one GPU sends between nodes at the largest message, by the way that sends least [bytes/s]."""
    nodes = series.key.nodes
    more = 2.0 * (nodes - 1) / nodes if series.key.op == "all-reduce" and nodes > 2 else 1.0  # of two, trees send half
    return more * float(series.size_bytes[-1] / series.time_s[-1]) * nodes / series.key.ranks


def _measured_rate(rate: float, source: str) -> dict[str, Any]:
    """A tier whose bandwidth is what was measured, and so all of it is reached."""
    return {
        "interconnect": format_rate(rate).replace(" ", ""),
        "bandwidth": quantity(rate, "B/s", source),
        "efficiency": fraction(WHOLE, "the bandwidth is what was measured"),
    }


def cluster_record(
    found: Calibration, base: Base, name: str, sustained: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """The profile of a cluster with what was measured on it.

    Args:
        found: the fits.
        base: what they were measured on.
        name: id of the profile.
        sustained: factors of a stack, from measured steps.

    Returns:
        The profile as JSON has it, checked.

    Raises:
        InputError: the profile would not be one that ``--profile`` reads.
    """
    sources = [fit.series.source for fit in found.fits]
    sources += [each.source for group in (found.gemms, found.copies, found.launches) for each in group]
    sources = list(dict.fromkeys(sources))
    if base.cluster is not None:
        record = {k: v for k, v in _plain(base.cluster).items() if k not in LEFT_BEHIND}
        record |= {"profile": "cluster", "id": name, "gpu": base.gpu.id}
    else:
        why = "ranks and nodes of the logs" if found.fits else f"usual host of {base.gpu.id}"
        count = quantity(base.gpus_per_node, "count", why, kind="assumed")
        record = {"profile": "cluster", "id": name, "provider": "measured", "gpu": base.gpu.id, "gpus_per_node": count}
        if tiers := _first_tiers(base, found.fits):
            record["tiers"] = tiers
    record["source"] = f"dscalc fit {', '.join(sources)}"[:1990] if sources else "dscalc fit"
    record["collectives"] = [curve_record(fit) for fit in found.fits]
    own = {**_sustained(found, base.gpu), **(sustained or {})}
    if own:
        record["sustained"] = own
    try:
        if record.get("tiers"):
            _set_rates(record, found.fits, described=base.cluster is not None or base.interconnect is not None)
        ClusterSpec.model_validate(record)
    except ValueError as error:  # a log that claims the impossible
        reason = str(error).splitlines()
        raise InputError(f"makes no profile: {' '.join(reason[1:3]) or reason[0]}"[:300], where="dscalc fit") from None
    return record


def _set_rates(record: dict[str, Any], fits: Sequence[Fit], *, described: bool) -> None:
    """Write into the tiers what they reach; of a network that nobody described, the bandwidth itself."""
    spec = ClusterSpec.model_validate(record)
    network = lower_network(spec).network
    curves = [lower_curves([curve], network.tiers, spec.gpus_in_node)[0] for curve in spec.collectives]
    fitted = tier_factors(fits, curves, network)
    shift = len(network.tiers) - len(record["tiers"])  # a tier of single GPUs stands before the only one
    for each in fitted:
        level = each.level - shift
        if level < 0:
            continue
        tier, lowered = record["tiers"][level], network.tiers[each.level]
        if level == len(record["tiers"]) - 1 and not described:
            tier |= _measured_rate(each.factor * tier["bandwidth"]["value"], each.source)
            tier["efficiency"] |= {"stderr": _round(PERCENT * each.stderr_fraction), "n": each.points}
            continue
        tier["efficiency"] = _moved(each, float(lowered.efficiency[0]))
        # a reduction that somebody must ask for was not what these logs measured
        if "reduction" in tier and each.reduces and tier["reduction"].get("by_itself", True):
            tier["reduction"]["efficiency"] = _moved(each, float(lowered.reduction_efficiency[0]))


def _moved(fit: TierFit, before: float) -> dict[str, Any]:
    value = before * fit.factor
    note = {"note": f"{value:.2f} of the wire by the model, taken as all of it"} if value > WHOLE else {}
    value = min(value, WHOLE)
    return fraction(value, fit.source, stderr=value * fit.stderr_fraction, n=fit.points) | note


def impossible(gemm: Gemm, gpu: GpuSpec) -> bool:
    """Products faster than the GPU is at best: the log is of another GPU, or of another data type."""
    dtype = gemm.dtype or UNSAID
    peak = gpu.peak.of(dtype) or gpu.peak.of({"bf16": "fp16", "fp16": "bf16"}.get(dtype, dtype))
    return peak is not None and gemm.reached_flop_per_s > ABOVE_PEAK * peak.base


def _sustained(found: Calibration, gpu: GpuSpec) -> dict[str, Any]:
    """What the GPU sustains, as a profile holds it."""
    own: dict[str, Any] = {}
    rates = {}
    for gemm in found.gemms:
        if not gemm.large:
            continue
        dtype = gemm.dtype or UNSAID
        if dtype in DTYPES and dtype != "fp4" and not impossible(gemm, gpu):
            rate = gemm.reached_flop_per_s
            stderr = gemm.stderr_flop_per_s / gemm.flop_per_s * rate
            rates[dtype] = quantity(rate, "FLOP/s", gemm.source, stderr=stderr, n=gemm.points)
    if rates:
        own["matmul"] = rates
    peak = gpu.memory_bandwidth_bytes_per_s
    if found.copies and peak:
        copy = found.copies[0]
        own["memory_fraction"] = fraction(
            min(copy.bytes_per_s / peak, WHOLE),
            copy.source,
            stderr=copy.stderr_bytes_per_s / peak,
            n=copy.points,
        )
    return own


def factor_record(name: str, value: Value, source: str) -> dict[str, Any]:
    """A factor of a stack as a profile holds it."""
    if name not in FACTORS:
        raise KeyError(name)
    return quantity(value.value, "count", source, stderr=value.stderr, n=value.points)


_NUMBERS = re.compile(r"\[\s*((?:-?\d[\d.e+-]*,\s*)*-?\d[\d.e+-]*)\s*\]")


def profile_text(record: Mapping[str, Any]) -> str:
    """A profile as text: columns of numbers on one line each."""
    text = json.dumps(record, indent=2, ensure_ascii=False, allow_nan=False)
    return _NUMBERS.sub(lambda m: "[" + ", ".join(re.split(r",\s*", m[1])) + "]", text) + "\n"


def spec_of(record: Mapping[str, Any]) -> ClusterSpec:
    """The profile as a prediction reads it."""
    return ClusterSpec.model_validate(dict(record))
