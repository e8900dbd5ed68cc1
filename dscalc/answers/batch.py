"""The batch question: what a different number of workers does to batch, learning rate, updates and waiting."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from dscalc.answers.batch_limits import EXTRA_DATA, Limit, Waiting, law_params, limits, waiting
from dscalc.answers.batch_rules import Rates, Warmup, rates
from dscalc.answers.case import SHAPE_WORDS, Case, build_case, inputs_of
from dscalc.answers.envelope import Assumption, Warning, envelope
from dscalc.answers.notes import refuse_illegal
from dscalc.cost.averaging import adam_update, reduced_gradient, sgd_update
from dscalc.cost.evaluate import evaluate
from dscalc.cost.sgd import effective_batch, updates
from dscalc.cost.trace import example_gradients
from dscalc.errors import InputError
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.specs.given import gather
from dscalc.specs.layout_spec import lower
from dscalc.specs.option_table import OPTIONS
from dscalc.specs.sgd_facts import Said, sgd_facts
from dscalc.units import GIGA

if TYPE_CHECKING:
    from dscalc.answers.batch_layouts import Layouts

MODEL_WORDS = ("model", "params", *SHAPE_WORDS)
NEEDS_MODEL = ("lora_rank", "lora_targets", "base_precision", "ep", "etp")
BEARING = ("dp", "tp", "pp", "cp", "micro_batch", "grad_accum", "seq_len", "optimizer", "stack", "zero", "usable_bytes")
EXAMPLE_LR = 0.1
EXAMPLE_WEIGHTS = (1.0, -2.0)


class Updates(NamedTuple):
    """Updates of the weights: of one worker alone and of all of them; None where nobody says how much is trained."""

    per_epoch: int | None
    per_epoch_alone: int | None
    total: int | None
    total_alone: int | None
    source: str


class Averaged(NamedTuple):
    """Two workers after one update, with the mean of their gradients and with the division forgotten."""

    optimizer: str
    mean: tuple[float, ...]
    total: tuple[float, ...]
    after_mean: tuple[float, ...]
    after_sum: tuple[float, ...]
    words: str


@dataclass(frozen=True, slots=True)
class BatchAnswer:
    """The answer. ``rates`` holds learning rate and warmup, ``limits`` the batch laws, ``waiting`` the stragglers."""

    case: Case
    given: Mapping[str, Any]
    modelled: bool
    workers: int
    local_batch: int
    accumulation: int
    batch: int
    seq_len: int | None
    updates: Updates
    rates: Rates
    limits: tuple[Limit, ...]
    waiting: Waiting
    layouts: Layouts | None
    averaging: tuple[Averaged, ...]
    notes: tuple[Said, ...]
    assumptions: tuple[Assumption, ...]
    warnings: tuple[Warning, ...]

    @property
    def batch_tokens(self) -> int | None:
        """Tokens behind one update; None where sequences have no length."""
        return None if self.seq_len is None else self.batch * self.seq_len

    @property
    def extra_data(self) -> float:
        """Extra data accepted for a larger batch, as a share."""
        return float(self.given.get("extra_data", EXTRA_DATA))

    @property
    def lr(self) -> float | None:
        """Learning rate by the rule, after warmup."""
        return self.rates.chosen.lr

    @property
    def warmup(self) -> Warmup:
        """The schedule; its ``factor`` is what ``LambdaLR`` takes."""
        return self.rates.warmup

    def to_json(self) -> dict[str, Any]:
        """The answer as the JSON object that the documentation freezes."""
        rates_, layouts = self.rates, self.layouts
        result: dict[str, Any] = {
            "effective_batch": self.batch,
            "effective_batch_tokens": self.batch_tokens,
            "workers": self.workers,
            "local_batch": self.local_batch,
            "accumulation": self.accumulation,
            "updates": {name: value for name, value in self.updates._asdict().items() if name != "source"},
            "lr": self.lr,
            "lr_factor": rates_.chosen.factor,
            "rule": rates_.rule,
            "rules": [
                {**{n: v for n, v in s._asdict().items() if n != "chosen"}, "low": s.low or None} for s in rates_.rules
            ],
            "adam": rates_.adam._asdict() if rates_.adam else None,
            "warmup": self.warmup.to_json(),
            "published": [p._asdict() for p in rates_.points],
            "critical_batch": [limit._asdict() for limit in self.limits],
            "straggler": self.waiting.to_json(),
            "accumulation_layouts": [v._asdict() for v in layouts.accumulation] if layouts else [],
            "parallelism": [{**p._asdict(), "layout": p.layout._asdict()} for p in layouts.parallelism]
            if layouts
            else [],
            "averaging": [a._asdict() for a in self.averaging],
            "notes": [f"{note.words} {note.source}" for note in self.notes],
        }
        return envelope("batch", self._inputs(), self.assumptions, self.warnings, result)

    def _inputs(self) -> dict[str, Any]:
        inputs = inputs_of(self.case)
        own = [name for name, option in OPTIONS.items() if "batch" in option.uses.split()]
        inputs["training"] |= {name: self.given.get(name) for name in own}
        inputs["training"]["warmup"] = str(self.given["warmup"]) if "warmup" in self.given else None
        if not self.modelled:
            inputs["model"] = dict.fromkeys(inputs["model"])
            hidden = {"params", *SHAPE_WORDS, *(() if self.seq_len else ("seq_len",))}
            inputs["marks"] = {name: mark for name, mark in inputs["marks"].items() if name not in hidden}
            if self.seq_len is None:
                inputs["training"] |= {"seq_len": None, "tokens_per_rank": None}
        return inputs


def batch(**options: object) -> BatchAnswer:
    """What a number of workers does to the batch, the learning rate and waiting, as ``dscalc batch`` answers it.

    Args:
        options: the options of ``dscalc batch`` with underscores, e.g. ``workers=256, local_batch=32, base_batch=256,
            base_lr=0.1``; in any accepted spelling, as numbers or text; ``scenario`` names a TOML file.

    Returns:
        The answer; ``answer.warmup.factor`` is what ``torch.optim.lr_scheduler.LambdaLR`` takes.

    Raises:
        DscalcError: an unknown name, an unreadable file, a value out of range, or options that contradict each other.
    """
    return answer({name: value for name, value in gather(options).items() if OPTIONS[name].group != "output"})


def answer(given: Mapping[str, Any]) -> BatchAnswer:
    """The same from options that ``gather`` has read."""
    modelled = any(name in given for name in MODEL_WORDS)
    case = _case(given, modelled)
    spec = case.layout.spec
    seq_len = spec.seq_len if modelled or "seq_len" in given or "tokens_per_rank" in given else None
    columns = (np.array([float(v)]) for v in (spec.dp, spec.micro_batch, spec.grad_accum))
    size = int(effective_batch(*columns)[0])
    assumed, warned = _assumed(case, modelled, seq_len), list(case.warnings) if modelled else []
    said = "optimizer" in given or "stack" in given or modelled
    found_rates = rates(given, size, spec.optimizer if said else None, assumed, warned)
    each, unit = (1, "images") if seq_len is None else (seq_len, "tokens")
    params = law_params(case.counts) if modelled else None
    worker = spec.micro_batch * spec.grad_accum * each
    found_limits = limits(given, float(size * each), float(worker), unit, params, assumed, warned)
    layouts = _layouts(given, case) if modelled else None
    inside = float(case.machine.record.gpus_per_node[0])
    if inside != inside:
        inside = case.books.constants.gpus_per_node
        assumed.append(Assumption("gpus_per_node", inside, "GPUs", "assumed", "no --gpus-per-node, --gpu or --cluster"))
    step_time_s = layouts.accumulation[0].step_time_s if layouts and layouts.accumulation else None
    waits = waiting(
        given, spec.gpus, inside, spec.tp * spec.cp, layouts.meetings if layouts else 0.0, step_time_s, assumed
    )
    found_updates = _updates(given, size, spec.micro_batch * spec.grad_accum, seq_len)
    warned += [*_long_warmup(found_rates.warmup, found_updates), *_misfit(layouts)]
    return BatchAnswer(
        case=case,
        given=dict(given),
        modelled=modelled,
        workers=spec.dp,
        local_batch=spec.micro_batch,
        accumulation=spec.grad_accum,
        batch=size,
        seq_len=seq_len,
        updates=found_updates,
        rates=found_rates,
        limits=found_limits,
        waiting=waits,
        layouts=layouts,
        averaging=_averaging(),
        notes=sgd_facts().notes,
        assumptions=tuple(assumed),
        warnings=tuple(warned),
    )


def _case(given: Mapping[str, Any], modelled: bool) -> Case:
    """The case; without a model one of any size stands in, because the batch does not depend on it."""
    if modelled:
        case = build_case(given)
        shape, record = case.model.shape, case.machine.record
        found = evaluate(shape, lower([case.layout.spec], case.books), record, case.adapters, keep_terms=False)
        refuse_illegal(found, case)
        return case
    for name in NEEDS_MODEL:
        if name in given:
            raise InputError("needs a model; add --model NAME or a config.json", where="--" + name.replace("_", "-"))
    stand_in = {"params": GIGA, "seq_len": given["tokens_per_rank"]} if "tokens_per_rank" in given else {"params": GIGA}
    return build_case({**stand_in, **given})


def _layouts(given: Mapping[str, Any], case: Case) -> Layouts:
    """The same batch in other layouts; what only a model needs is loaded only then."""
    from dscalc.answers.batch_layouts import layouts_of

    return layouts_of(given, case)


def _assumed(case: Case, modelled: bool, seq_len: int | None) -> list[Assumption]:
    """What bears on the answer and nobody typed."""
    hidden = set() if modelled else {"optimizer", "stack", "zero", *(() if seq_len else ("seq_len",))}
    return [
        a
        for a in case.assumptions
        if (a.name in BEARING and a.name not in hidden) or (modelled and a.name.startswith("model."))
    ]


def _updates(given: Mapping[str, Any], size: int, alone: int, seq_len: int | None) -> Updates:
    """Updates an epoch and in total; beside them those of one worker, which sees as many samples alone."""

    def count(samples: float | None, each: int) -> int | None:
        return None if samples is None else int(updates(np.array(samples), np.array(float(each))))

    epoch = float(given["dataset_samples"]) if "dataset_samples" in given else None
    whole, source = None, ""
    if "tokens" in given and seq_len is not None:
        whole, source = given["tokens"] / seq_len, "--tokens"
    if epoch is not None and "epochs" in given:
        if whole is not None:
            raise InputError("say how long training is, and so does --tokens; leave one out", where="--epochs")
        whole, source = epoch * given["epochs"], "--epochs"
    if "epochs" in given and epoch is None:
        raise InputError("are of a data set; add --dataset-samples", where="--epochs")
    return Updates(count(epoch, size), count(epoch, alone), count(whole, size), count(whole, alone), source)


def _long_warmup(warmup: Warmup, found: Updates) -> list[Warning]:
    if found.total is None or not warmup.steps or warmup.steps < found.total:
        return []
    return [
        Warning(
            "warmup_longer_than_training",
            f"warmup takes {warmup.steps:,} updates, and training has {found.total:,}",
            "shorten --warmup",
        )
    ]


def _misfit(layouts: Layouts | None) -> list[Warning]:
    if layouts is None or not layouts.accumulation or layouts.accumulation[0].fits is not False:
        return []
    return [
        Warning(
            "does_not_fit",
            "this layout does not fit in the memory of the GPU",
            "ask dscalc memory with the same options what would help",
        )
    ]


def _averaging() -> tuple[Averaged, ...]:
    """Two workers, worked out with numpy: what a forgotten division does."""
    gradients, weights = example_gradients(2), np.array(EXAMPLE_WEIGHTS)
    mean, total = reduced_gradient(gradients, True), reduced_gradient(gradients, False)

    def row(name: str, after_mean: Array, after_sum: Array, words: str) -> Averaged:
        numbers = [tuple(values.tolist()) for values in (mean, total, after_mean, after_sum)]
        return Averaged(name, numbers[0], numbers[1], numbers[2], numbers[3], words)

    return (
        row(
            "sgd",
            sgd_update(weights, mean, EXAMPLE_LR),
            sgd_update(weights, total, EXAMPLE_LR),
            "k times the learning rate, for SGD and momentum: beyond 2 / (k curvature) it diverges",
        ),
        row(
            "adam",
            adam_update(weights, mean, EXAMPLE_LR)[0],
            adam_update(weights, total, EXAMPLE_LR)[0],
            "hidden: the factor cancels, except beside eps, in clipping by norm and in fp16 overflow",
        ),
    )
