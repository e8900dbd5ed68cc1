"""``--rank-order`` and ``--overlap``: what moves, what does not, and words that are none."""

from __future__ import annotations

import json
from typing import Any

import pytest

import dscalc
from dscalc.errors import InputError

PIPED: dict[str, Any] = {"model": "llama-3-70b", "cluster": "dgx-h100", "gpus": 64, "tp": 2, "pp": 4, "zero": 1}
PIPED |= {"global_batch": 128}
EXPERTS: dict[str, Any] = {"model": "mixtral-8x7b", "cluster": "dgx-h100", "gpus": 32, "tp": 2, "pp": 2, "ep": 8}


def row(found: Any, axis: str, op: str) -> Any:
    return next(r for r in found.rows if (r.axis, r.op) == (axis, op))


def test_a_pipeline_on_neighbouring_ranks() -> None:
    """8 GPUs a node: a pipeline of 2 x 4 fits in one, and then each data-parallel rank lies in a node of its own."""
    usual, other = dscalc.comm(**PIPED), dscalc.comm(**PIPED, rank_order="tp-cp-pp-dp")
    assert (row(usual, "pp", "send-recv").stride, row(other, "pp", "send-recv").stride) == (16, 2)
    assert (row(usual, "pp", "send-recv").tier, row(other, "pp", "send-recv").tier) == ("network", "scale-up")
    assert (row(usual, "dp", "reduce-scatter").members_inside, row(other, "dp", "reduce-scatter").members_inside) == (
        4,
        1,
    )
    for axis, op in (("tp", "all-gather"), ("tp", "reduce-scatter")):
        assert row(usual, axis, op) == row(other, axis, op)
    assert [r.traffic_bytes for r in usual.rows] == [r.traffic_bytes for r in other.rows]
    assert usual.to_json()["inputs"]["layout"]["rank_order"] == "tp-cp-dp-pp"


def test_the_order_reaches_every_command(run_dscalc: Any) -> None:
    words = [w for name, value in PIPED.items() for w in (f"--{name.replace('_', '-')}", str(value))]
    for command, more in (("step", []), ("ratio", []), ("sweep", ["--cp", "1", "--vpp", "1"])):
        plain = run_dscalc(command, *words, *more, "--format", "json")
        megatron = run_dscalc(command, *words, *more, "--use-tp-pp-dp-mapping", "--format", "json")
        named = run_dscalc(command, *words, *more, "--rank-order", "tp_cp_pp_dp", "--format", "json")
        results = [json.loads(ran.stdout)["result"] for ran in (plain, megatron, named)]
        if command == "sweep":
            results = [found["rows"][0]["step_time_s"] for found in results]
        assert results[0] != results[1]
        assert results[1] == results[2]
    with pytest.raises(InputError, match="it takes tp-cp-dp-pp, tp-cp-pp-dp"):
        dscalc.step(**PIPED, rank_order="pp-tp")


def test_experts_stay_in_their_block() -> None:
    assert dscalc.comm(**EXPERTS).rows
    with pytest.raises(InputError, match="--ep \\* --etp must divide tp \\* cp"):
        dscalc.comm(**EXPERTS, rank_order="tp-cp-pp-dp")


def test_one_order_is_no_assumption() -> None:
    alone = dscalc.step(**PIPED | {"pp": 1, "tp": 8})
    assert alone.case.layout.marks["rank_order"] == "derived"
    assert dscalc.step(**PIPED).case.layout.marks["rank_order"] == "default"


def test_what_hides_lies_between_nothing_and_all() -> None:
    for case in (PIPED, PIPED | {"stack": "megatron"}, {**PIPED, "tp": 1, "pp": 1, "zero": 3}):
        nothing, usual, everything = (
            dscalc.step(**case, **more) for more in ({"overlap": "none"}, {}, {"overlap": "tp,dp,pp,ep"})
        )
        assert everything.step_time_s <= usual.step_time_s <= nothing.step_time_s
        assert everything.step_time_s < nothing.step_time_s
        assert everything.memory.total_bytes == nothing.memory.total_bytes
        assert nothing.case.given["overlap"] == ("none",)


def test_an_axis_hides_alone() -> None:
    nothing, data = (dscalc.step(**PIPED, overlap=words) for words in (["none"], ["dp"]))
    first, second = ({t.path: t.seconds for t in found.terms} for found in (nothing, data))
    assert second["communication/dp"] < 0.5 * first["communication/dp"]
    assert second["communication/tp"] == first["communication/tp"]
    said = data.to_json()
    assert said["inputs"]["training"]["overlap"] == ["dp"]
    assert not [a for a in said["assumptions"] if a["name"].endswith(("_exposed", "overlap_power"))]
    sent = [dscalc.comm(**PIPED, overlap=words) for words in ("none", "dp")]
    assert row(sent[0], "dp", "reduce-scatter").exposed_s == row(sent[0], "dp", "reduce-scatter").time_s
    assert row(sent[1], "dp", "reduce-scatter").exposed_s < 0.1 * row(sent[1], "dp", "reduce-scatter").time_s


def test_overlap_takes_axes(run_dscalc: Any) -> None:
    ran = run_dscalc("step", "--params", "7e9", "--gpu", "H100-SXM5-80GB", "--overlap", "cp")
    assert (ran.returncode, ran.stdout) == (2, "")
    assert ran.stderr == "Error: --overlap: 'cp' is not one of its words; it takes none, tp, dp, pp, ep\n"
    both = run_dscalc("step", "--params", "7e9", "--gpu", "H100-SXM5-80GB", "--overlap", "none,dp")
    assert "only one can be meant" in both.stderr
