"""What a whole training takes on each machine: time, GPU-hours, money, energy, and what failures add."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.answers.sweep_rows import Row
from dscalc.answers.sweep_setup import Setup
from dscalc.cost.goodput import daly_interval_s, goodput_fraction
from dscalc.units import DAY, HOUR, format_time

MTBF_S = 50_700.0 * HOUR  # of one GPU
CHECKPOINT_S, RESTART_S, PUE = 60.0, 600.0, 1.2
LEAST_GOODPUT = 0.8  # of the time; less is worth a word
OLD_DAYS = 90  # a price is dated, and soon another
NOT_INCLUDED = "storage, network egress, head nodes, support and people, and GPUs that wait"
POWER = "GPU boards at their power limit times the PUE; hosts, switches and storage are not included"


class Price(NamedTuple):
    """Price of one GPU-hour, as its source dates it."""

    usd_per_gpu_hour: float
    kind: str
    source: str
    date: str | None
    terms: str


class Reliability(NamedTuple):
    """How often GPUs fail, and what saving and going on again takes [s]."""

    mtbf_s: float
    checkpoint_s: float
    restart_s: float
    interval_s: float | None  # None: the best one


class Budget(NamedTuple):
    """A whole training by the best layout of one machine at one number of GPUs; None where a number is missing."""

    setup: str
    gpus: int
    tokens: float
    steps: float
    train_time_s: float  # without failures
    goodput_fraction: float
    checkpoint_interval_s: float
    failures: float
    wall_time_s: float  # with checkpoints and failures
    gpu_hours: float
    usd: float | None
    usd_per_gpu_hour: float | None
    energy_j: float | None
    power_w: float | None


def price_of(setup: Setup) -> Price | None:
    """The price given, else the first of the cluster's profile."""
    if setup.usd_per_gpu_hour is not None:
        return Price(setup.usd_per_gpu_hour, "given", "--price", None, "")
    cluster = setup.case.machine.cluster
    if cluster is None or not cluster.prices:
        return None
    first = cluster.prices[0]
    record = first.per_hour
    usd = cluster.usd_per_gpu_hour(first)
    return Price(usd, record.kind, record.source, first.date, first.terms or f"per {first.per} and hour")


def rates_of(setups: Iterable[Setup]) -> dict[str, float]:
    """What a GPU-hour of each machine costs; 1 for all where one has no price, as money and hours do not compare."""
    prices = {setup.name: price_of(setup) for setup in setups}
    known = {name: price.usd_per_gpu_hour for name, price in prices.items() if price is not None}
    return known if len(known) == len(prices) else dict.fromkeys(prices, 1.0)


def usd_per_token(row: Row, price: Price | None) -> float | None:
    """What a token costs on the GPUs of a layout, without failures; None where no price is known."""
    if price is None:
        return None
    return price.usd_per_gpu_hour * row.gpus / (row.tokens_per_s * HOUR)


def reliability_of(given: Mapping[str, Any]) -> Reliability:
    """What was given of failures, and what is assumed."""
    return Reliability(
        given.get("mtbf", MTBF_S),
        given.get("checkpoint_time", CHECKPOINT_S),
        given.get("restart_time", RESTART_S),
        given.get("checkpoint_interval"),
    )


def budget_of(setup: Setup, row: Row, given: Mapping[str, Any]) -> Budget:
    """A whole training of ``tokens`` by one layout.

    Args:
        setup: the machine.
        row: the layout.
        given: parsed options; reads ``tokens`` and what belongs to prices, power and failures.

    Returns:
        Time, money and energy [s, USD, J].
    """
    tokens, spec = float(given["tokens"]), row.layout
    steps = float(np.ceil(tokens / (spec.global_batch * spec.seq_len)))
    training = steps * row.step_time_s
    sure = reliability_of(given)
    job = np.asarray([sure.mtbf_s / row.gpus])
    delta, restart = np.asarray([sure.checkpoint_s]), np.asarray([sure.restart_s])
    interval = daly_interval_s(delta, job) if sure.interval_s is None else np.asarray([sure.interval_s])
    kept = float(goodput_fraction(interval, delta, restart, job)[0])
    wall = training / kept if kept > 0.0 else float("inf")
    hours = wall * row.gpus / HOUR
    price = price_of(setup)
    gpu = setup.case.machine.gpu
    watts = gpu.tdp_w * row.gpus * given.get("pue", PUE) if gpu is not None and gpu.tdp_w is not None else None
    return Budget(
        setup=setup.name,
        gpus=row.gpus,
        tokens=tokens,
        steps=steps,
        train_time_s=training,
        goodput_fraction=kept,
        checkpoint_interval_s=float(interval[0]),
        failures=wall / float(job[0]),
        wall_time_s=wall,
        gpu_hours=hours,
        usd=None if price is None else hours * price.usd_per_gpu_hour,
        usd_per_gpu_hour=None if price is None else price.usd_per_gpu_hour,
        energy_j=None if watts is None else watts * wall,
        power_w=watts,
    )


def budget_assumptions(given: Mapping[str, Any]) -> Iterator[Assumption]:
    """What a budget rests on."""
    if "mtbf" not in given:
        source = "[Dubey2024] table 5: 419 stops of 16,384 H100 in 54 days; give --mtbf, or measure it"
        yield Assumption("mtbf", MTBF_S, "s", "assumed", source)
    if "checkpoint_time" not in given:
        yield Assumption("checkpoint_time", CHECKPOINT_S, "s", "assumed", "time one save: give --checkpoint-time")
    if "checkpoint_interval" not in given:
        yield Assumption("checkpoint_interval", None, "s", "default", "the best one by [Daly2006]")
    if "restart_time" not in given:
        source = "from a failure until training goes on; time one: give --restart-time"
        yield Assumption("restart_time", RESTART_S, "s", "assumed", source)
    if "pue" not in given:
        source = "power of the building over that of the GPUs' boards; ask the data centre: give --pue"
        yield Assumption("pue", PUE, "", "assumed", source)
    yield Assumption("power", None, "W", "datasheet", POWER)


def price_assumptions(setups: tuple[Setup, ...]) -> Iterator[Assumption]:
    """The price that each machine is reckoned with, where one is known."""
    for setup in setups:
        price = price_of(setup)
        if price is not None:
            dated = f", {price.date}" if price.date else ", undated" if price.kind != "given" else ""
            terms = f"; {price.terms}" if price.terms else ""
            source = f"{price.source}{dated}{terms}; not included: {NOT_INCLUDED}"
            yield Assumption(f"price.{setup.name}", price.usd_per_gpu_hour, "USD/GPU-hour", price.kind, source)


def budget_warnings(setups: tuple[Setup, ...], budgets: Sequence[Budget], today: date) -> Iterator[Warning]:
    """Prices that are old or missing, and training that failures eat."""
    eaten = [b for b in budgets if b.goodput_fraction < LEAST_GOODPUT]
    if eaten:
        worst = min(eaten, key=lambda b: b.goodput_fraction)
        yield Warning(
            "failures",
            f"on {worst.gpus:,} GPUs failures and checkpoints leave {worst.goodput_fraction:.0%} of the time to train",
            "give the --mtbf, --checkpoint-time and --restart-time that you measured, or take fewer GPUs",
        )
    for setup in setups:
        price = price_of(setup)
        if price is None:
            yield Warning(
                "no_price", f"nothing says what a GPU-hour of {setup.name} costs", "give --price, in USD for a GPU-hour"
            )
        elif price.kind != "given" and (age := _age_days(price.date, today)) is not None and age > OLD_DAYS:
            yield Warning(
                "old_price",
                f"the price of {setup.name} is of {price.date}, {age} days ago",
                "ask for today's price and give --price",
            )
        elif price.kind != "given" and price.date is None:
            yield Warning(
                "old_price", f"the price of {setup.name} is undated", "ask for today's price and give --price"
            )


def _age_days(written: str | None, today: date) -> int | None:
    """Days since a date that may lack its day or its month: then since the end of the month or the year."""
    if written is None:
        return None
    parts = [int(part) for part in written.split("-")]
    year, month = parts[0], parts[1] if len(parts) > 1 else 12
    if len(parts) == 3:
        then = date(year, month, parts[2])
    else:
        after = date(year + month // 12, month % 12 + 1, 1)
        then = min(date.fromordinal(after.toordinal() - 1), today)
    return (today - then).days


def budget_words(budget: Budget) -> str:
    """A budget in one line."""
    days = budget.wall_time_s / DAY
    cost = f", {budget.usd:,.0f} USD" if budget.usd is not None else ""
    return (
        f"{days:,.1f} days on {budget.gpus} GPUs, checkpoints every {format_time(budget.checkpoint_interval_s)}{cost}"
    )
