"""Published step times as rows: what a source leaves empty is filled from one written table, then lowered."""

from __future__ import annotations

import re
import tomllib
from functools import lru_cache
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from dscalc.errors import DscalcError
from dscalc.frozen import dataclass
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.store import load_gpu
from dscalc.validation.rows import EXCLUDING_FLAGS, Row, lower_cells
from dscalc.validation.table import Excluded, UnusableRowError, number, read_table, reason_of, whole

NEEDED = ("id", "source_key", "n_layers", "hidden", "n_heads", "seq_len", "n_gpus", "gpu")
# another job than training whole weights on packed sequences, or a row that contradicts itself
LEFT_OUT_FLAGS = EXCLUDING_FLAGS | {
    "noise_40pct": "noise of 40 % by the authors' own words",
    "gbs_ne_mbs_x_gas_x_dp": "printed batch does not multiply out",
    "gbs_label_inconsistent": "printed batch inconsistent",
    "tps_vs_step_mismatch": "printed throughput and step time disagree",
    "unpacked_data": "padded sequences",
    "end_to_end_average": "average over restarts",
    "single_iteration": "one iteration",
    "example_log_line": "one example line of a log",
    "layers_unknown": "number of layers not stated",
    "heads_unknown": "number of heads not stated",
    "token_drop": "tokens dropped",
    "lower_bound_statement": "a bound, not a measurement",
    "upper_bound_statement": "a bound, not a measurement",
    "throughput_inconsistent": "throughput inconsistent",
}
UNHEALTHY = ("slow_outlier", "latency_bound", "very_low_mfu", "proxy_layers", "layout_")
LEAST_MFU = 0.20
TRAINING = ("pretrain", "sft-full", "finetune", "")
LOW = {"mxfp8": "fp8", "nvfp4": "fp4", "fp8": "fp8"}


@dataclass(frozen=True, slots=True)
class Domain:
    """The network of a row: GPUs and NICs of one domain, and what joins domains."""

    gpus: int
    nics: int
    interconnect: str


@dataclass(frozen=True, slots=True)
class StepRow:
    """One published step time, lowered."""

    row: Row
    measured_s: float
    mfu: float | None  # as reported, a fraction
    task: str
    model: str
    precision: str  # of the linear layers
    gpu: GpuSpec
    domain: Domain

    @property
    def kind(self) -> str:
        """What sort of layout it is."""
        layout = self.row.layout
        words = [
            name
            for name, degree in (("tp", layout.tp), ("pp", layout.pp), ("cp", layout.cp), ("ep", layout.ep))
            if degree > 1
        ]
        if layout.zero == 3:
            words.append("fsdp")
        return "+".join(words) or ("dp" if layout.dp > 1 else "one GPU")


@lru_cache(maxsize=1)
def _table() -> dict[str, Any]:
    return tomllib.loads((files("dscalc.validation") / "step_sources.toml").read_text(encoding="utf-8"))


def faulty_sources() -> frozenset[str]:
    """Sources whose cluster is known to have a floor a layer, see ``specs/pace.toml``."""
    return frozenset(name for name, own in _table().items() if isinstance(own, dict) and own.get("floor"))


def read_step_rows(path: Path | None = None) -> tuple[list[StepRow], list[Excluded]]:
    """Rows with a step time or a throughput, of the shipped table or of a CSV file with its columns.

    Args:
        path: a CSV file; None for the rows that ship.

    Returns:
        The rows that can be predicted, and those that cannot with the reason.

    Raises:
        InputError: the file cannot be read, is too large or lacks a column.
    """
    rows: list[StepRow] = []
    excluded: list[Excluded] = []
    for cells in read_table(path, "step_rows.csv", NEEDED):
        if not cells.get("step_time_s") and not cells.get("tokens_per_s_per_gpu"):
            if path is not None:
                reason = "step_time_s and tokens_per_s_per_gpu not stated: nothing to compare with"
                excluded.append(Excluded(cells["id"], reason))
            continue
        try:
            rows.append(_lower(cells))
        except (DscalcError, ValidationError, UnusableRowError) as error:
            excluded.append(Excluded(cells["id"] or "?", reason_of(error)))
    return rows, excluded


def _lower(cells: dict[str, str]) -> StepRow:
    for flag in filter(None, cells.get("flags", "").split(";")):
        if flag in LEFT_OUT_FLAGS:
            raise UnusableRowError(LEFT_OUT_FLAGS[flag])
    if re.search(r"\bcapacity=\d", cells.get("notes", "")):
        raise UnusableRowError("experts padded to a capacity, tokens beyond it dropped")
    task = cells.get("task", "")
    if task not in TRAINING:
        raise UnusableRowError(f"task {task}: not training of all weights")
    gpu = _gpu(cells["gpu"])
    filled = _filled(cells)
    if not any(filled.get(name) for name in ("tp", "zero_or_fsdp")):
        raise UnusableRowError("layout not stated")
    row = lower_cells(filled)
    words = filled.get("precision", "")
    precision = LOW.get(words, words)
    if gpu.peak.of(precision) is None:
        raise UnusableRowError(f"{gpu.id} has no {precision} rate")
    return StepRow(
        row=row,
        measured_s=_measured(filled, row),
        mfu=number(filled, "mfu"),
        task=task,
        model=cells.get("model", ""),
        precision=precision,
        gpu=gpu,
        domain=_domain(cells),
    )


def _gpu(name: str) -> GpuSpec:
    if not name:
        raise UnusableRowError("GPU not stated")
    return load_gpu(_table()["gpus"].get(name, name)).spec


def _domain(cells: dict[str, str]) -> Domain:
    printed = _table().get(cells["source_key"], {}).get("interconnect", "")
    text = f"{cells.get('interconnect', '')} {printed} {cells['gpu']}"
    for rule in _table()["network"]:
        if any(word in text for word in rule["words"]):
            gpus = whole(cells, "gpus_per_node", 0, least=0)
            if rule.get("rack") or gpus < 1 or gpus == rule["gpus"]:
                return Domain(rule["gpus"], rule["nics"], rule["interconnect"])
            return Domain(gpus, max(1, rule["nics"] * gpus // rule["gpus"]), rule["interconnect"])
    raise UnusableRowError("network not known")


def _filled(cells: dict[str, str]) -> dict[str, str]:
    """The cells with what the source leaves empty."""
    table = _table()
    own = table.get(cells["source_key"], {})
    given = table["default"] | own
    found = dict(cells)
    for name, value in given.items():
        if name in ("vocab", "precision", "recompute", "micro_batch", "zero_or_fsdp", "etp") and not found.get(name):
            found[name] = str(value)
    if cells["gpu"].startswith("V100") and not cells.get("precision"):
        found["precision"] = "fp16"
    renamed = table["frameworks"].get(cells["source_key"].partition("-")[0], {})
    first = cells.get("framework", "").partition(" ")[0]
    if first in renamed and "ROCm" not in cells["framework"]:
        found["framework"] = renamed[first]
    if "Megatron-LM" in cells.get("framework", "") and cells["gpu"].startswith(
        tuple(table["megatron_core_on"]["gpus"])
    ):
        found["framework"] = "Megatron-Core"
    for rule in table["stack_of_experts"] if cells.get("moe_experts") else ():
        if (
            found.get("framework", "").startswith(tuple(rule["frameworks"]))
            and any(word in cells.get("notes", "").lower() for word in rule["words"])
            and ("precision" not in rule or cells.get("precision") in rule["precision"])
            and ("gpus" not in rule or cells["gpu"].startswith(tuple(rule["gpus"])))
        ):
            found["framework"] = rule["means"]
    newer = table["megatron_v3_with"]
    if found.get("framework") == newer["framework"] and any(number(found, name) for name in newer["columns"]):
        found["framework"] = newer["means"]
    scripts = own.get("by_layers") or table.get(own.get("by_layers_of", ""), {}).get("by_layers", {})
    layers = str(whole(cells, "n_layers", 0))
    if layers in scripts and not cells.get("micro_batch") and number(cells, "tp"):
        for name, value in scripts[layers].items():
            if name not in own.get("without", ()):
                found[name] = str(value)
    stages, deep = number(found, "pp") or 1.0, number(found, "n_layers") or 1.0
    if own.get("interleaved") and not found.get("vpp") and stages > 1.0 and deep % stages == 0.0:
        found["vpp"] = str(round(deep / stages))
    if stages > 1.0 and not found.get("micro_batch") and not found.get("grad_accum"):
        found["micro_batch"] = str(table["default"]["micro_batch_of_pipeline"])
    found["zero_or_fsdp"] = re.sub(r"^distributed-optimizer", "zero1", found.get("zero_or_fsdp", ""))
    return found


def _measured(cells: dict[str, str], row: Row) -> float:
    """Seconds of a step, from a throughput where no time is printed."""
    stated = number(cells, "step_time_s", above=0.0)
    if stated is not None:
        return stated
    rate = number(cells, "tokens_per_s_per_gpu", above=0.0)
    if rate is None:
        raise UnusableRowError("tokens_per_s_per_gpu not stated")
    layout = row.layout
    batch = number(cells, "global_batch") or layout.global_batch
    return batch * layout.seq_len / (rate * layout.gpus)
