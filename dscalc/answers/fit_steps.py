"""A user's own measured steps: which factors of the stack they identify, and how well the rest is then predicted."""

from __future__ import annotations

import csv
import io
import tempfile
from collections.abc import Mapping, Sequence, Set
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dscalc.answers.case import build_case
from dscalc.answers.envelope import Warning
from dscalc.answers.step import Inputs, step_inputs
from dscalc.calibrate.fit_factors import Factors, fit_factors
from dscalc.calibrate.profile import factor_record, profile_text
from dscalc.cost.exchange import Exchange, exchange
from dscalc.cost.step import timed_step
from dscalc.errors import DscalcError, InputError
from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.specs.bounded_file import read_bounded
from dscalc.specs.calibrated import calibrated
from dscalc.specs.given import gather
from dscalc.specs.measured import Sustained
from dscalc.specs.option_table import CONSTANTS, OPTIONS
from dscalc.specs.options import canonical, nearest
from dscalc.units import MIB, parse_time

MAX_BYTES = 1 * MIB
MAX_ROWS = 500
MEASURED = ("step_time_s", "step_time")
HARDWARE = ("cluster", "gpu", "profile", "interconnect")  # said by the logs and options of the fit itself
FAR = 0.10  # median error of left-out steps above which factors do not explain them


class StepRow(NamedTuple):
    """One measured step beside its prediction."""

    line: int
    words: str
    measured_s: float
    before_s: float
    after_s: float
    left_out_s: float


@dataclass(frozen=True, slots=True, eq=False)
class StepFactors:
    """Factors of a stack, from measured steps."""

    file: str
    stack: str
    fit: Factors
    rows: tuple[StepRow, ...]

    @property
    def source(self) -> str:
        """File and lines."""
        return f"{self.file}:{self.rows[0].line}-{self.rows[-1].line}"

    def record(self) -> dict[str, Any]:
        """What a profile holds of it."""
        if not self.fit.values:
            return {}
        found = {name: factor_record(name, value, self.source) for name, value in self.fit.values.items()}
        return {"stack": self.stack, **found}

    def error(self, name: str) -> float:
        """Median relative error of the predictions of one column."""
        return float(np.median([abs(getattr(row, name) / row.measured_s - 1.0) for row in self.rows]))

    @property
    def warnings(self) -> list[Warning]:
        """What a reader should know before trusting the factors."""
        found = []
        if not self.fit.values:
            steps = "one step identifies" if len(self.rows) == 1 else f"{len(self.rows)} steps identify"
            text = f"{self.file}: {steps} no factor of {self.stack}: several of them could explain what was measured"
            found.append(
                Warning("not_identified", text, "add steps of other micro-batches, sequence lengths and layouts")
            )
        if len(self.rows) > 1 and self.error("left_out_s") > FAR:
            text = f"{self.file}: left out one by one, steps are still {self.error('left_out_s'):.0%} off in the median"
            found.append(Warning("steps_unexplained", text, "look at the worst of them with dscalc step --measured"))
        return found

    def to_json(self) -> dict[str, Any]:
        """The answer's part."""
        return {
            "file": self.file,
            "stack": self.stack,
            "factors": [
                {"name": name, "value": v.value, "stderr": v.stderr, "points": v.points}
                for name, v in self.fit.values.items()
            ],
            "not_identified": list(self.fit.unknown),
            "rows": [row._asdict() for row in self.rows],
            "median_error_before_fraction": self.error("before_s"),
            "median_error_after_fraction": self.error("after_s"),
            "median_error_left_out_fraction": self.error("left_out_s"),
        }


def fit_step_file(path: str, record: Mapping[str, Any]) -> StepFactors:
    """Fit the factors that a file of steps identifies, on hardware as a profile describes it.

    Args:
        path: a CSV file; its columns are words of ``dscalc step``, and ``step_time_s``.
        record: the profile.

    Returns:
        The factors.

    Raises:
        InputError: the file cannot be read, lacks a column, or a row cannot be predicted; names the line.
    """
    cells = _read(path)
    inputs: list[Inputs] = []
    measured = []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "fitted.json"
        file.write_text(profile_text(record), encoding="utf-8")
        for line, row in cells:
            try:
                seconds, words = _seconds(row), {k: v for k, v in row.items() if k not in MEASURED and v}
                for name in HARDWARE:
                    if name in words:
                        raise InputError(f"a column {name}: the steps are those of the cluster that is fitted")
                options = gather({**words, "profile": str(file)})
                inputs.append(step_inputs(options, build_case(options))[0])
                measured.append(seconds)
            except DscalcError as error:
                raise InputError(error.message.replace(str(file), "the profile"), where=f"{path}:{line}") from None
    stacks = sorted({each.case.layout.spec.stack for each in inputs})
    if len(stacks) > 1:
        raise InputError(f"steps of several stacks ({', '.join(stacks)}); fit one at a time", where=path)
    sent = [_sent(each) for each in inputs]
    fit = fit_factors(lambda factors: _predict(inputs, sent, factors), np.asarray(measured))
    alike = {name for name in cells[0][1] if len(cells) > 1 and len({row[name] for _, row in cells}) == 1}
    columns = zip(cells, measured, fit.before_s, fit.after_s, fit.left_out_s, strict=True)
    rows = [
        StepRow(line, _words(row, alike), seconds, float(before), float(after), float(left))
        for (line, row), seconds, before, after, left in columns
    ]
    return StepFactors(path, stacks[0], fit, tuple(rows))


def _sent(inputs: Inputs) -> Exchange:
    """Communication on the wire, which is what the profile says of it whatever the factors."""
    return exchange(inputs.case.model.shape, inputs.layouts, inputs.network.network, inputs.case.adapters)


def _predict(inputs: Sequence[Inputs], sent: Sequence[Exchange], factors: Mapping[str, float]) -> Array:
    """Seconds of every step under some factors."""
    unit = {"unit": "count", "kind": "fitted", "source": "a trial"}
    sustained = Sustained.model_validate({name: {"value": value, **unit} for name, value in factors.items()})
    found = []
    for each, wire in zip(inputs, sent, strict=True):
        gpu, shape = each.case.machine.gpu, each.case.model.shape
        assert gpu is not None  # noqa: S101 - a step has one
        spec = each.case.layout.spec
        c = calibrated(gpu, sustained, spec.stack, spec.precision, each.engine, each.table)
        took = timed_step(shape, each.layouts, c.engine, c.table, each.constants, wire, each.case.adapters)
        found.append(float(took.step_time_s[0]))
    return np.asarray(found)


def _words(row: Mapping[str, str], alike: Set[str]) -> str:
    """What sets a row apart from the others."""
    return ", ".join(f"{k} {v}" for k, v in row.items() if v and k not in MEASURED and k not in alike)


def _seconds(row: Mapping[str, str]) -> float:
    """The measured step of a row."""
    name = next((n for n in MEASURED if row.get(n)), None)
    if name is None:
        raise InputError("no step_time_s; give seconds")
    text = row[name]
    try:
        seconds = float(text)
    except ValueError:
        seconds = parse_time(text)
    if not 0.0 < seconds < float("inf"):
        raise InputError(f"{name} {text!r} is no time above 0")
    return seconds


def _read(path: str) -> list[tuple[int, dict[str, str]]]:
    """Rows of the file with their lines, known columns only."""
    try:
        text = read_bounded(path, MAX_BYTES).decode("utf-8-sig")
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or 'larger than 1 MiB'}", where=path) from None
    except UnicodeDecodeError:
        raise InputError("is not UTF-8 text; save it as CSV in UTF-8", where=path) from None
    try:
        reader = csv.reader(io.StringIO(text), strict=True)
        header = [name.strip().lower().replace("-", "_") for name in next(reader, [])]
        rows = [(reader.line_num, cells) for cells in reader if any(cell.strip() for cell in cells)]
    except csv.Error as error:
        raise InputError(f"is not CSV: {error}", where=path) from None
    if not any(name in header for name in MEASURED):
        raise InputError("has no column step_time_s; name one column so, in seconds", where=f"{path}:1")
    words = [canonical(name) for name in header]
    for name, word in zip(header, words, strict=True):
        if words.count(word) > 1:
            raise InputError(f"column {name!r} stands twice; keep one", where=f"{path}:1")
        if name not in MEASURED:
            _known(name, path)
    if not rows or len(rows) > MAX_ROWS:
        raise InputError(f"has {len(rows)} rows; 1 to {MAX_ROWS} are right", where=path)
    found = []
    for line, cells in rows:
        if len(cells) != len(header):
            raise InputError(f"has {len(cells)} cells under {len(header)} columns", where=f"{path}:{line}")
        found.append((line, dict(zip(header, (cell.strip() for cell in cells), strict=True))))
    return found


def _known(name: str, path: str) -> None:
    """Refuse a column that is no word of ``dscalc step``."""
    word = canonical(name)
    if word not in OPTIONS and word not in CONSTANTS:
        near = nearest(word, [*OPTIONS, *MEASURED]) or "; columns are options of dscalc step, e.g. model,gpus,tp,zero"
        raise InputError(f"no column {name!r} is known{near}", where=f"{path}:1")
