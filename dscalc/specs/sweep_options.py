"""Options of a sweep: the shared ones, of which many take lists and ranges, and its own.

Nothing heavy is imported here: the table serves ``--help``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dscalc.specs.option_table import FORMATS, OPTIONS, Option

MACHINES = ("cluster", "gpu", "interconnect")  # every combination is one setup to compare
DEGREES = ("tp", "pp", "vpp", "cp", "ep", "etp", "dp", "dp_replicate", "micro_batch")  # each also has a --max-
CHOICES = ("zero", "schedule", "recompute", "recompute_layers", "cp_comm")
LEFT_OUT = {  # what every layout of a sweep has of its own
    "grad_accum": "follows from --global-batch in a sweep: leave it out, or fix --dp and --micro-batch",
    "tokens_per_rank": "follows from --global-batch in a sweep: give that",
    "dp_shard": "follows from --dp and --dp-replicate in a sweep: give those",
    "nodes": "is no option of a sweep: give --gpus, nodes times GPUs a node, e.g. --gpus 8..64",
}
OF_BATCH = ("tokens", "noise_scale", "batch_law", "train_loss")  # how long a training is, and its critical batch
OUTPUTS = (*FORMATS, "parquet")
OBJECTIVES = ("time", "cost", "headroom", "gpus")
SCALINGS = ("strong", "weak")
MAX_TOP = 1000
MAX_JOBS = 256


def _own(name: str, kind: str, text: str, group: str = "sweep", **more: object) -> Option:
    return Option(name, group, kind, text, uses="time", **more)  # type: ignore[arg-type]


OWN: tuple[Option, ...] = (
    *(_own(f"max_{name}", "whole", f"Try --{name.replace('_', '-')} up to this.", metavar="N") for name in DEGREES),
    _own("top", "whole", "Layouts to list for each number of GPUs [5].", metavar="N", maximum=MAX_TOP),
    _own(
        "objective",
        "choice",
        "What is best: the shortest step, the least money, the most free memory among nearly as fast layouts (see "
        "--within), the fewest GPUs [time].",
        choices=OBJECTIVES,
    ),
    _own("within", "fraction", "Slower than the fastest, for --objective headroom [5%].", metavar="X"),
    _own(
        "scaling",
        "choice",
        "strong: the global batch stays; weak: it grows with the GPUs, from the smallest number on [strong].",
        choices=SCALINGS,
    ),
    _own("marginal", "fraction", "Scaling stops where one more GPU gives less of its ideal [50%].", metavar="SHARE"),
    _own("jobs", "whole", "Processes to work with [1].", metavar="N", maximum=MAX_JOBS),
    _own(
        "price",
        "number",
        "Price of a GPU-hour in USD, instead of the profile's; one for all machines, or one for each.",
        metavar="USD",
        many=True,
    ),
    _own("pue", "number", "Power drawn by the building over that of the GPUs' boards [1.2].", metavar="X", least=1.0),
    _own("mtbf", "time", "Time between failures of one GPU, e.g. 50000h.", metavar="TIME", least=1.0),
    _own(
        "checkpoint_interval", "time", "Time between checkpoints; default: the best by Daly.", metavar="TIME", least=1.0
    ),
    _own("checkpoint_time", "time", "Time that training stands still to save a checkpoint [60s].", metavar="TIME"),
    _own("restart_time", "time", "Time from a failure until training goes on [10min].", metavar="TIME"),
    _own("plot", "path", "Also draw the curves, as .svg or .png (needs matplotlib).", "output", metavar="FILE"),
    _own("report", "path", "Also write a page to pass on: one .html file.", "output", metavar="FILE"),
)


def _table() -> dict[str, Option]:
    found = {
        name: option
        for name, option in OPTIONS.items()
        if name not in LEFT_OUT and (option.group == "output" or "time" in option.uses.split())
    }
    for name in ("gpus", *MACHINES, *DEGREES, *CHOICES):
        found[name] = replace(found[name], many=True)
    for name in ("jitter", "overlap"):
        found[name] = replace(OPTIONS[name], uses="time")
    found["format"] = replace(found["format"], choices=OUTPUTS)
    found["force"] = replace(found["force"], help="Replace existing files of --output, --plot and --report.")
    own = {option.name: option for option in OWN}
    shared = {name: replace(OPTIONS[name], group="sweep", uses="time") for name in OF_BATCH}
    return found | own | shared


TABLE: Mapping[str, Option] = _table()
