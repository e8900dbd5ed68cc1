"""The learning rate for a batch: rule, what it was seen to hold for, and warmup as a schedule."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.envelope import Assumption, Warning
from dscalc.cost.sgd import scaled_lr, square_root_adam, updates, warmup_lr
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.specs.options import Span
from dscalc.specs.sgd_facts import Point, Rule, sgd_facts
from dscalc.specs.stack import entries

LONGEST_SCHEDULE = 20_000  # rows; a longer warmup is listed in even strides
ADAM = {"beta1": 0.9, "beta2": 0.999, "eps": 1e-8}  # [Kingma2015] section 2
ADAM_SOURCE = "[Kingma2015] algorithm 1"


class Moment(NamedTuple):
    """One row of the schedule: updates done, epochs done, learning rate, and that over the base rate."""

    step: int | None
    epoch: float | None
    lr: float | None
    factor: float | None


@dataclass(frozen=True, slots=True)
class Warmup:
    """The learning rate from the first update on, before any decay. Rates are None where no base rate is known.

    ``factor`` is what ``torch.optim.lr_scheduler.LambdaLR`` takes, of an optimizer made with the base rate.
    """

    base_lr: float | None
    start: float | None  # over the base rate
    peak: float | None
    start_lr: float | None
    peak_lr: float | None
    steps: int | None
    epochs: float | None
    updates_per_epoch: int | None
    source: str

    def lr(self, step: float) -> float:
        """Learning rate of the update after ``step`` updates.

        Args:
            step: updates done, from 0 [updates].

        Returns:
            The learning rate [1/step].

        Raises:
            InputError: no base rate, or nothing says how many updates warmup has.
        """
        if self.start_lr is None or self.peak_lr is None:
            raise InputError("is unknown, so there is no learning rate; add base_lr and base_batch", where="--base-lr")
        return _ramp(step, self._length(), self.start_lr, self.peak_lr)

    def factor(self, step: float) -> float:
        """The same over the base rate: the multiplier of ``LambdaLR``.

        Args:
            step: updates done, from 0 [updates].

        Returns:
            The factor [-].

        Raises:
            InputError: no base batch, or nothing says how many updates warmup has.
        """
        if self.start is None or self.peak is None:
            raise InputError("is unknown, so nothing is scaled; add base_batch", where="--base-batch")
        if self.base_lr is not None:
            return self.lr(step) / self.base_lr
        return _ramp(step, self._length(), self.start, self.peak)

    def _length(self) -> float:
        if self.steps is None:
            raise InputError(
                "is given in epochs, and nothing says how many updates an epoch has; add dataset_samples, or give it "
                "in steps",
                where="--warmup",
            )
        return float(self.steps)

    def schedule(self) -> tuple[Moment, ...]:
        """Update by update to the end of warmup, epoch by epoch where nothing says how many updates an epoch has."""
        if self.steps is not None:
            stride = max(1, -(-self.steps // LONGEST_SCHEDULE))
            steps = [*range(0, self.steps, stride), self.steps]
            per = self.updates_per_epoch
            return tuple(self._moment(step, step / per if per else None) for step in steps)
        if self.epochs is None:
            return ()
        return tuple(self._at_epoch(epoch) for epoch in _marks(self.epochs))

    def by_epoch(self) -> tuple[Moment, ...]:
        """A few rows to read: at whole epochs, or at tenths of a warmup in steps."""
        if self.epochs is not None and self.updates_per_epoch is not None:
            steps = [min(round(epoch * self.updates_per_epoch), self.steps or 0) for epoch in _marks(self.epochs)]
            return tuple(self._moment(step, step / self.updates_per_epoch) for step in dict.fromkeys(steps))
        if self.epochs is not None:
            return tuple(self._at_epoch(epoch) for epoch in _marks(self.epochs))
        steps = [round((self.steps or 0) * tenth / 5) for tenth in range(6)]
        return tuple(self._moment(step, None) for step in dict.fromkeys(steps))

    def _moment(self, step: int, epoch: float | None) -> Moment:
        lr = None if self.start_lr is None else self.lr(step)
        return Moment(step, epoch, lr, None if self.start is None else self.factor(step))

    def _at_epoch(self, epoch: float) -> Moment:
        if self.start is None or self.peak is None or self.epochs is None:
            return Moment(None, epoch, None, None)
        if self.start_lr is None or self.peak_lr is None or self.base_lr is None:
            return Moment(None, epoch, None, _ramp(epoch, self.epochs, self.start, self.peak))
        lr = _ramp(epoch, self.epochs, self.start_lr, self.peak_lr)
        return Moment(None, epoch, lr, lr / self.base_lr)

    def to_json(self) -> dict[str, Any]:
        """As the JSON object that the documentation freezes."""
        return {
            "start_lr": self.start_lr,
            "peak_lr": self.peak_lr,
            "start_factor": self.start,
            "peak_factor": self.peak,
            "steps": self.steps,
            "epochs": self.epochs,
            "updates_per_epoch": self.updates_per_epoch,
            "formula": "start + (peak - start) min(step / steps, 1)",
            "source": self.source,
            "schedule": [m._asdict() for m in self.by_epoch()],
        }


def _ramp(progress: float, length: float, start: float, peak: float) -> float:
    return float(warmup_lr(np.array(float(progress)), np.array(length), np.array(start), np.array(peak)))


MOST_MARKS = 20


def _marks(epochs: float) -> list[float]:
    """Whole epochs and the end; every few where there are many."""
    stride = max(1, -(-int(epochs) // MOST_MARKS))
    return [*(float(epoch) for epoch in range(0, int(np.ceil(epochs)), stride)), epochs]


class Scaled(NamedTuple):
    """What one rule makes of the learning rate; None where no base is known."""

    rule: str
    lr: float | None
    factor: float | None
    chosen: bool
    formula: str
    optimizers: str
    low: float
    high: float
    held: str
    source: str


class Adam(NamedTuple):
    """What the square-root rule makes of Adam's other constants."""

    beta1: float
    beta2: float
    eps: float
    out_of_range: bool


@dataclass(frozen=True, slots=True)
class Rates:
    """Learning rate, rules and warmup of a batch."""

    rule: str
    base_batch: int | None
    base_lr: float | None
    rules: tuple[Scaled, ...]
    adam: Adam | None
    warmup: Warmup
    points: tuple[Point, ...]

    @property
    def chosen(self) -> Scaled:
        """The rule that was asked for, or that belongs to the optimizer."""
        return next(scaled for scaled in self.rules if scaled.chosen)


def rates(
    given: Mapping[str, Any], batch: int, optimizer: str | None, assumed: list[Assumption], warned: list[Warning]
) -> Rates:
    """Learning rate and warmup.

    Args:
        given: parsed options.
        batch: effective batch [sequences].
        optimizer: the optimizer's name; None where nobody said.
        assumed: gets what was taken for granted.
        warned: gets what the reader should know.

    Returns:
        The rates.

    Raises:
        InputError: a base rate without its batch.
    """
    facts = sgd_facts()
    base_batch, base_lr = given.get("base_batch"), given.get("base_lr")
    if base_lr is not None and base_batch is None:
        raise InputError("was tuned at some batch; add --base-batch 256", where="--base-lr")
    name = given.get("rule") or _rule_of(optimizer, assumed)
    scaled = tuple(_scaled(rule, batch, base_batch, base_lr, rule.name == name) for rule in facts.rules.values())
    adam = _adam(given, base_batch, batch, assumed) if name == "sqrt" and base_batch else None
    warmup = _warmup(given, facts.rules[name], next(s for s in scaled if s.chosen), batch, base_lr, assumed)
    found = Rates(name, base_batch, base_lr, scaled, adam, warmup, facts.points)
    idle = [f"--{word}" for word in ADAM if word in given] if adam is None else []
    if idle:
        words = f"{' and '.join(idle)} changed nothing: only the square-root rule from a base batch scales Adam"
        warned.append(Warning("unused_option", words, "add --base-batch and --rule sqrt, or leave it out"))
    if base_batch is not None:
        warned += _warnings(found, batch, base_batch, optimizer)
    return found


def _rule_of(optimizer: str | None, assumed: list[Assumption]) -> str:
    if optimizer is None:
        why = "SGD with momentum where no optimizer is said; add --optimizer adamw or --rule"
        assumed.append(Assumption("rule", "linear", "", "default", why))
        return "linear"
    name = str(entries("optimizers")[optimizer].values["lr_rule"])
    assumed.append(Assumption("rule", name, "", "default", f"the rule of optimizer {optimizer}"))
    return name


def _scaled(rule: Rule, batch: int, base_batch: int | None, base_lr: float | None, chosen: bool) -> Scaled:
    lr = factor = None
    if base_batch is not None:
        columns = np.array(float(base_batch)), np.array(float(batch))
        factor = float(scaled_lr(rule.name, np.array(1.0), *columns))
        lr = None if base_lr is None else float(scaled_lr(rule.name, np.array(base_lr), *columns))
    return Scaled(
        rule.name, lr, factor, chosen, rule.formula, rule.optimizers, rule.low, rule.high, rule.held, rule.source
    )


def _adam(given: Mapping[str, Any], base_batch: int, batch: int, assumed: list[Assumption]) -> Adam:
    assumed += [Assumption(n, usual, "", "default", ADAM_SOURCE) for n, usual in ADAM.items() if n not in given]
    beta1, beta2, eps = (np.array(given.get(name, usual)) for name, usual in ADAM.items())
    found = square_root_adam(beta1, beta2, eps, np.array(float(base_batch)), np.array(float(batch)))
    return Adam(float(found.beta1), float(found.beta2), float(found.eps), bool(found.out_of_range))


def _warmup(
    given: Mapping[str, Any],
    rule: Rule,
    chosen: Scaled,
    batch: int,
    base_lr: float | None,
    assumed: list[Assumption],
) -> Warmup:
    grows = chosen.factor is not None and chosen.factor > 1.0
    span: Span = given.get("warmup", rule.warmup)
    source = sgd_facts().warmup_sources["epochs"]
    if "warmup" not in given:
        if rule.name == "linear" and not grows:
            span = Span(0.0, "epochs")
        source = sgd_facts().warmup_sources[span.unit]
        if span.amount:
            assumed.append(Assumption("warmup", str(span), "", "default", source))
    gradual = rule.name == "linear" and grows  # from the base rate; from 0 elsewhere
    start = None if chosen.factor is None else 1.0 if gradual else 0.0
    samples = given.get("dataset_samples")
    per_epoch = int(updates(np.array(float(samples)), np.array(float(batch)))) if samples else None
    steps = epochs = None
    if not span.amount:
        steps, epochs = 0, 0.0
    elif span.unit == "steps":
        steps, epochs = int(span.amount), span.amount / per_epoch if per_epoch else None
    else:
        steps, epochs = round(span.amount * per_epoch) if per_epoch else None, span.amount
    start_lr = None if base_lr is None or start is None else base_lr * start
    return Warmup(base_lr, start, chosen.factor, start_lr, chosen.lr, steps, epochs, per_epoch, source)


DECIDES = "let the loss curve and validation decide: try the rate, half and twice of it"


def _warnings(found: Rates, batch: int, base_batch: int, optimizer: str | None) -> Iterator[Warning]:
    rule, points = found.chosen, {(p.batch, p.rule, p.warmup): p for p in found.points}
    if batch == base_batch:
        return
    if rule.rule == "linear" and batch > rule.high:
        best, last = points[(8192, "linear", "gradual")], points[(16384, "linear", "gradual")]
        words = f"{last.error:.2f} % error at {last.batch:,} images after {best.error:.2f} % at {best.batch:,}"
        yield Warning(
            "beyond_evidence",
            f"a batch of {batch:,} is beyond what the linear rule was seen to hold for: {words}",
            DECIDES,
        )
    elif not rule.low <= batch <= rule.high:
        yield Warning(
            "beyond_evidence",
            f"a batch of {batch:,} is outside {rule.low:,.0f} to {rule.high:,.0f}, where rule {rule.rule} was seen to "
            "hold",
            DECIDES,
        )
    if rule.rule == "none":
        bad = points[(8192, "none", "none needed")]
        yield Warning(
            "not_scaled",
            f"the learning rate stays while the batch goes from {base_batch:,} to {batch:,}: with SGD "
            f"{bad.error:.2f} % error at {bad.batch:,} images",
            "scale it, or tune it again at this batch",
        )
    if found.adam is not None and found.adam.out_of_range:
        yield Warning(
            "beta_out_of_range",
            f"{batch / base_batch:g} times the batch would need a decay rate below 0; 0 is shown, and the rule has no "
            "answer there",
            DECIDES,
        )
    if rule.rule == "linear" and rule.factor is not None and rule.factor > 1.0 and found.warmup.steps == 0:
        bad, good = points[(8192, "linear", "none")], points[(8192, "linear", "gradual")]
        yield Warning(
            "no_warmup",
            f"the linear rule without warmup: {bad.error:.2f} % error at {bad.batch:,} images, with it "
            f"{good.error:.2f} %",
            "add --warmup 5epochs",
        )
    if optimizer is not None:
        own = str(entries("optimizers")[optimizer].values["lr_rule"])
        if {own, rule.rule} == {"linear", "sqrt"}:
            yield Warning(
                "rule_of_another_optimizer",
                f"rule {rule.rule} is not the one of {optimizer}, which is {own}",
                f"use --rule {own}, or be sure of it",
            )
