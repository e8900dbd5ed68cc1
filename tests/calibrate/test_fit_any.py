"""Whatever a log claims, a fit is a fit, a refusal with its reason, or one clear error; never a broken profile."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dscalc.calibrate.fit import fit_logs
from dscalc.calibrate.measurements import Read, Table
from dscalc.calibrate.profile import Base, cluster_record, profile_text, spec_of
from dscalc.cost.collectives import collective
from dscalc.errors import InputError
from dscalc.specs.network import lower_network
from dscalc.specs.store import load_gpu

GPU = load_gpu("H100").spec
OPERATIONS = ("all_reduce", "all_to_all", "send_recv", "reduce", "")
CELL = st.one_of(st.floats(1e-9, 1e4), st.just(float("nan")), st.just(0.0))
ROWS = st.lists(st.tuples(st.floats(1.0, 1e13), CELL, CELL, st.sampled_from([0.0, 0.0, 3.0])), max_size=12)


@st.composite
def tables(draw: st.DrawFn) -> Table:
    """A table of any numbers."""
    rows = draw(ROWS)
    nan = np.full((2, len(rows)), np.nan)
    times = np.array([[r[1] for r in rows], [r[2] for r in rows]]).reshape(2, len(rows))
    ranks = draw(st.one_of(st.none(), st.integers(1, 100_000)))
    stated: dict[str, Any] = {
        "file": "a.log", "format": "x", "op": draw(st.sampled_from(OPERATIONS)),
        "ranks": ranks, "nodes": draw(st.one_of(st.none(), st.integers(1, ranks or 8))), "gpu": "",
        "first_line": 1, "last_line": max(len(rows), 1), "size_bytes": np.array([r[0] for r in rows]),
        "time_s": times, "algbw_bytes_per_s": nan, "busbw_bytes_per_s": nan,
        "wrong": np.array([[r[3] for r in rows], [0.0] * len(rows)]).reshape(2, len(rows)),
        "line": np.arange(len(rows)), "rows_torn": 0, "rows_zero": 0, "checks": (),
    }  # fmt: skip
    return Table(**stated)


@settings(max_examples=60)
@given(st.lists(tables(), min_size=1, max_size=4), st.sampled_from([1, 4, 8, 72]))
def test_any_table_is_fitted_or_refused(found: list[Table], node: int) -> None:
    read = Read("a.log", "x", tuple(found), (), ())
    fitted = fit_logs([read], gpus_per_node=node)
    assert len(fitted.refused) + sum(1 for _ in fitted.fits) + len(fitted.conflicts) >= 1
    for fit in fitted.fits:
        assert (fit.error > 0.0).all()
        assert (np.diff(fit.series.size_bytes) > 0.0).all()
        for piece in fit.lines.pieces:
            numbers = [float(x) for x in piece]
            assert np.isfinite(numbers).all()
            assert min(numbers) >= 0.0
    try:
        record = cluster_record(fitted, Base(GPU, node, None), "x")
    except InputError:
        return
    network = lower_network(spec_of(json.loads(profile_text(record)))).network if record.get("tiers") else None
    if network is not None:
        for curve in network.curves:
            one = np.array([curve.group])
            call = collective(
                curve.op, np.exp(curve.log_bytes[:1]), one, curve.members[:, None], curve.spread[:, None], network
            )
            assert np.isfinite(call.time_s).all()
