"""Error bars: parts that add in squares, wider where less is known, many layouts as one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from dscalc.cost.bar import NAMES, SORTS, bar
from dscalc.cost.step import step
from dscalc.cost.step_terms import SPECS
from dscalc.records import ErrorBars, Timing
from dscalc.specs.network import compose_network, load_interconnect
from dscalc.specs.pace import engine, error_bars, pace_constants, pace_table
from dscalc.specs.stack import stack_names
from dscalc.specs.store import load_gpu
from tests.cost.helpers import LLAMA_3_8B, MIXTRAL_8X7B, layouts, rows

H100 = load_gpu("H100-SXM5-80GB").spec
NETWORK = compose_network(H100, 8, load_interconnect("ib-ndr").spec, nics_per_node=8).network
TIMING = Timing(engine(H100, "bf16")[0], pace_table(), pace_constants(), NETWORK)
BARS = error_bars("H100-SXM5-80GB", NAMES)
NO = np.zeros(1)


def plain(**changed: object) -> ErrorBars:
    """Bars of which one part alone has a width."""
    nothing = np.zeros(len(NAMES))
    base = ErrorBars(nothing, nothing, nothing, 0.0, 0.0, 0.0, 0.0, np.zeros(len(stack_names())), 0.0)
    return replace(base, **changed)


def test_every_term_of_a_step_belongs_to_one_sort() -> None:
    assert sorted(path for _, paths in SORTS for path in paths) == sorted(SPECS)


def test_a_part_is_its_share_of_the_step_times_how_well_it_is_known() -> None:
    layout = layouts(seq_len=4096, tp=4, stack="nanotron")
    found = step(LLAMA_3_8B, layout, TIMING)
    share = next(t.exposed_s[0] for t in found.terms if t.spec.path == "communication/tp") / found.step_time_s[0]
    known = np.asarray([0.5 if name == "tensor" else 0.0 for name in NAMES])
    assert bar(found, layout, NO, plain(known=known)).half_width_fraction[0] == pytest.approx(0.5 * share)
    both = bar(found, layout, NO, plain(known=known, always=0.03)).half_width_fraction[0]
    assert both == pytest.approx(np.hypot(0.5 * share, 0.03))


def test_a_profile_that_is_not_sure_widens_the_bar() -> None:
    layout = layouts(seq_len=4096)
    found = step(LLAMA_3_8B, layout, TIMING)
    sure = bar(found, layout, NO, BARS).half_width_fraction[0]
    unsure = error_bars("H100-SXM5-80GB", NAMES, {"matmul": 0.2})
    linear = next(t.exposed_s[0] for t in found.terms if t.spec.path == "compute/linear_layers") / found.step_time_s[0]
    wider = bar(found, layout, NO, unsure).half_width_fraction[0]
    assert wider > np.hypot(sure, 1.28 * 0.2 * linear) * 0.999


def test_unmeasured_stacks_and_gpus_and_experts_have_wider_bars() -> None:
    def width(stack: str, bars: ErrorBars = BARS, **changed: object) -> float:
        layout = layouts(seq_len=4096, stack=stack, **changed)
        return float(bar(step(LLAMA_3_8B, layout, TIMING), layout, NO, bars).half_width_fraction[0])

    assert width("fsdp2") > width("nemo")
    assert width("generic") > width("nanotron")
    assert width("nemo", error_bars("a GPU nobody ran", NAMES)) > width("nemo")
    layout = layouts(seq_len=4096, stack="nemo")
    experts = bar(step(MIXTRAL_8X7B, layout, TIMING), layout, NO, BARS).half_width_fraction[0]
    assert experts > 1.5 * width("nemo")


def test_many_layouts_are_each_what_one_is() -> None:
    names = ("nanotron", "fsdp2", "nemo")
    cases = [{"seq_len": 1024 * 4**i, "tp": 2**i, "micro_batch": 1, "stack": name} for i, name in enumerate(names)]
    many = layouts(**{name: [case[name] for case in cases] for name in cases[0]})
    low = np.asarray([0.0, 1.0, 0.0])
    whole = bar(step(LLAMA_3_8B, many, TIMING), many, low, BARS)
    for number in range(len(cases)):
        one = rows(many, np.asarray([number]))
        alone = bar(step(LLAMA_3_8B, one, TIMING), one, low[number : number + 1], BARS)
        assert alone.half_width_fraction[0] == whole.half_width_fraction[number]
