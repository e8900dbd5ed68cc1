"""Published step times against predictions: accuracy that must hold, sets that everybody is compared on, bad input."""

from __future__ import annotations

import csv
import io
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from dscalc.answers.validate_step import validate_steps
from dscalc.errors import InputError
from dscalc.records import Array
from dscalc.report.validate_step import render
from dscalc.specs.pace import faults, pace_table, shipped
from dscalc.validation.fit_model import FitModel, centre, record_at, settings, tables, voters
from dscalc.validation.fit_step import Fit, report
from dscalc.validation.fit_write import rewritten
from dscalc.validation.step import StepPrediction, StepValidation, batches, validate_step
from dscalc.validation.step_rows import StepRow, read_step_rows

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "step-time.md"
GRID = "ultrascale"


@pytest.fixture(scope="module")
def found() -> StepValidation:
    return validate_step()


def of(found: StepValidation, source: str) -> list[StepPrediction]:
    return [p for p in found.predictions if p.row.row.source == source]


def spearman(first: list[float], second: list[float]) -> float:
    ranks = [np.argsort(np.argsort(x)).astype(float) for x in (first, second)]
    return float(np.corrcoef(*ranks)[0, 1])


def test_healthy_rows_are_predicted_closely(found: StepValidation) -> None:
    """With constants that these rows took part in; left-out errors are larger and stand on the page."""
    assert sum(p.healthy for p in found.predictions) > 1000
    assert found.average_median < 0.05
    assert found.median < 0.045
    assert found.p90 < 0.15


def test_sets_that_everybody_is_compared_on(found: StepValidation) -> None:
    """Korthikanti et al. 2022, table 5; Narayanan et al. 2021, table 1; vTrain on one node."""
    narayanan = [p for p in of(found, "narayanan2021") if p.row.row.id <= "narayanan2021-0010"]
    assert len(narayanan) == 10
    for rows, worst in ((of(found, "korthikanti2022"), 0.07), (narayanan, 0.06), (of(found, "vtrain-single"), 0.10)):
        assert np.mean([abs(p.error_fraction) for p in rows]) < worst


def test_brackets_hold_the_prediction_and_terms_add_up(found: StepValidation) -> None:
    for p in found.predictions:
        assert p.lower_s <= p.predicted_s <= p.upper_s
        assert sum(seconds for _, seconds in p.terms) == pytest.approx(p.predicted_s, rel=1e-12)


def test_layouts_are_ranked_as_measured(found: StepValidation) -> None:
    """Healthy rows of the same model, GPUs and batch: at least five layouts a group."""
    groups: dict[tuple[object, ...], list[StepPrediction]] = defaultdict(list)
    for p in found.predictions:
        if p.healthy:
            layout = p.row.row.layout
            key = (p.row.row.source, p.row.row.shape, p.row.gpu.id, layout.gpus, layout.global_batch, layout.seq_len)
            groups[(*key, p.row.precision)].append(p)
    large = [members for members in groups.values() if len(members) >= 5]
    ranks, losses = [], []
    for members in large:
        measured, predicted = [p.row.measured_s for p in members], [p.predicted_s for p in members]
        ranks.append(spearman(measured, predicted))
        losses.append(measured[int(np.argmin(predicted))] / min(measured) - 1.0)
    assert len(large) >= 20
    assert np.median(ranks) > 0.8
    assert np.mean(losses) < 0.06


def test_rows_left_out_say_why(found: StepValidation) -> None:
    reasons = {e.reason for e in found.excluded}
    assert "GPU not stated" in reasons
    assert all(reasons)


def test_page_holds_the_table_that_the_command_prints() -> None:
    assert render(validate_steps(), "markdown").strip() in PAGE.read_text(encoding="utf-8")


HEADER = "id,source_key,n_layers,hidden,n_heads,ffn_hidden,vocab,seq_len,gpu,n_gpus,tp,pp,micro_batch,global_batch"
HEADER += ",step_time_s"


def test_a_file_of_ones_own(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        f"{HEADER}\nmine-1,mine,32,4096,32,11008,32000,4096,H100-SXM5-80GB,8,8,1,1,8,1.5\n", encoding="utf-8"
    )
    found = validate_step(path)
    assert [p.row.row.id for p in found.predictions] == ["mine-1"]
    assert render(validate_steps(str(path)), "csv").startswith("id,source_key,split_group,metric,measured,predicted")


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ("x,mine,32,4096,32,11008,32000,4096,,8,8,1,1,8,1.5", "GPU not stated"),
        ("x,mine,32,4096,32,11008,32000,4096,Abacus-1,8,8,1,1,8,1.5", "Abacus-1"),
        ("x,mine,32,4096,32,11008,32000,4096,H100-SXM5-80GB,8,,,1,8,1.5", "layout not stated"),
        ("x,mine,32,4096,32,11008,32000,4096,H100-SXM5-80GB,8,8,1,1,8,-1", "not positive"),
        ("x,mine,32,4096,32,11008,32000,4096,H100-SXM5-80GB,8,8,1,1,8,soon", "not a number"),
    ],
)
def test_unusable_rows(tmp_path: Path, cells: str, reason: str) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(f"{HEADER}\n{cells}\n", encoding="utf-8")
    rows, excluded = read_step_rows(path)
    assert not rows
    assert reason in excluded[0].reason


def test_files_that_are_no_tables(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_step_rows(tmp_path / "nothing.csv")
    path = tmp_path / "short.csv"
    path.write_text("id,step_time_s\nx,1\n", encoding="utf-8")
    with pytest.raises(InputError, match="lacks the column 'source_key'"):
        read_step_rows(path)


@pytest.mark.shared
def test_rows_that_ship_are_those_of_the_shared_table(shared_data: Path, found: StepValidation) -> None:
    whole = validate_step(shared_data / "measurements.csv")
    here = {p.row.row.id: p.predicted_s for p in found.predictions}
    assert {p.row.row.id: p.predicted_s for p in whole.predictions if p.row.row.id in here} == here


# --- the fit ---
def nothing_fitted(rows: tuple[StepRow, ...], log_values: Array, relative: Array) -> Fit:
    """A fit that found some values and predicts every row as measured."""
    seconds = np.asarray([row.measured_s for row in rows])
    constants = settings().constants
    everywhere = np.ones(len(rows), dtype=bool)
    counts = tuple({"bloom": 3} for _ in constants)
    asked = voters(rows)
    return Fit(
        constants, log_values, relative, asked, rows, everywhere, seconds, seconds, seconds, relative, counts, everywhere
    )


def test_every_constant_of_the_fit_is_a_record_that_says_so() -> None:
    for constant in settings().constants:
        for path in constant.paths:
            record = record_at(shipped(), path)
            assert record["kind"] == "fitted", path
            assert {"value", "unit", "source", "stderr", "spread", "rows"} <= set(record), path


def test_every_number_that_says_it_is_fitted_is_in_the_fit() -> None:
    known = {path for constant in settings().constants for path in constant.paths}

    def walk(data: dict[str, object], path: str) -> Iterator[str]:
        for name, value in data.items():
            if isinstance(value, dict) and "kind" in value:
                if value["kind"] == "fitted" and "stderr" in value:
                    yield f"{path}{name}"
            elif isinstance(value, dict):
                yield from walk(value, f"{path}{name}.")

    fitted = {p for p in walk(shipped(), "") if not p.startswith(("faults.", "matmul_share."))}
    assert fitted <= known


def test_a_fit_is_written_into_the_records_it_names() -> None:
    text = (Path(__file__).parents[2] / "dscalc" / "specs" / "pace.toml").read_text(encoding="utf-8")
    constants = settings().constants
    values = np.linspace(0.1, 0.9, len(constants))
    rows, _ = read_step_rows()
    data = tomllib.loads(rewritten(text, nothing_fitted(tuple(rows), np.log(values), np.full(len(values), 0.5))))
    for number, constant in zip(values, constants, strict=True):
        for path in constant.paths:
            record = record_at(data, path)
            assert record["value"] == pytest.approx(number, rel=1e-3), path
            assert record["stderr"] == 0.5
            assert record["rows"] == "bloom 3"


def test_the_unknown_stack_is_the_median_of_the_numbers_that_measured_stacks_have() -> None:
    rows, _ = read_step_rows()
    asked = voters(rows)
    table = shipped()["stack"]["generic"]
    assert centre([4.0, 1.0, 2.0]) == 2.0
    assert centre([1.0, 4.0]) == 2.0
    for column in ("elementwise", "host_layer_s", "tp_exposed", "dp_exposed_sharded"):
        values = [record_at(shipped(), path)["value"] for path in asked[column]]
        assert table[column]["value"] == pytest.approx(float(np.exp(np.median(np.log(values)))), rel=2e-3)
    without = voters([row for row in rows if row.row.source != GRID])
    assert not any("nanotron" in path for paths in without.values() for path in paths if "elementwise" not in path)


def test_a_stack_nobody_knows_is_the_generic_one() -> None:
    values = np.log([c.prior for c in settings().constants])
    rows, _ = read_step_rows()
    table = pace_table(tables(values, voters(rows), ["nanotron"]))
    first, second = (table.names.index(name) for name in ("nanotron", "generic"))
    assert table.elementwise[first] == table.elementwise[second]
    assert table.host_layer_s[first] == table.host_layer_s[second]


def test_many_trials_at_once_are_each_what_one_is() -> None:
    rows, _ = read_step_rows()
    few = rows[::40]
    model, asked = FitModel(few), voters(few)
    prior = np.log([c.prior for c in settings().constants])
    trials = [tables(prior + 0.1 * np.eye(len(prior))[k], asked) for k in (0, 9, 20, 30)]
    together = model.predict_many(trials)
    for data, seconds in zip(trials, together, strict=True):
        assert (model.predict(data) == seconds).all()


def test_report_lists_constants_and_groups() -> None:
    rows, _ = read_step_rows()
    values = np.log([c.prior for c in settings().constants])
    text = report(nothing_fitted(tuple(rows[:30]), values, values * 0))
    assert "constants.gemm_ramp" in text
    assert "mean of the group medians 0.0%" in text


def test_csv_of_the_answer_has_one_row_a_prediction(found: StepValidation) -> None:
    rows = list(csv.DictReader(io.StringIO(render(validate_steps(), "csv"))))
    assert len(rows) == len(found.predictions)
    assert {"low", "high", "healthy", "split_group"} <= set(rows[0])


def test_the_large_grid_is_ranked_by_the_model_and_by_the_faults_of_its_cluster() -> None:
    """One cluster's runs without stalled ones: bad layouts are predicted bad, better still with its named fault on."""
    rows = [row for row in read_step_rows()[0] if row.row.source == GRID]
    measured = np.asarray([row.measured_s for row in rows])
    known, usual = faults(), pace_table()
    floor = replace(
        usual,
        floor_s=usual.floor_s + known["floor_s"].value,
        floor_tp_s=usual.floor_tp_s + known["floor_tp_s"].value,
    )
    layouts = [row.row.layout for row in rows]
    stall, further = known["stall_s"].value, known["stall_stage_s"].value
    stalled = np.asarray([stall * x.grad_accum + further * (x.pp - 1) for x in layouts])
    piped = np.asarray([x.pp > 1 for x in layouts])
    spoiled = np.asarray(["slow_outlier" in row.row.flags for row in rows])
    kept = ~spoiled & ~(piped & (np.abs(stalled / measured - 1.0) < 0.2))
    assert kept.sum() > 600
    for table, least in ((usual, 0.88), (floor, 0.97)):
        predicted = np.empty(len(rows))
        for batch in batches(rows):
            predicted[list(batch.numbers)] = batch.step(table).step_time_s
        assert spearman(measured[kept].tolist(), predicted[kept].tolist()) > least
