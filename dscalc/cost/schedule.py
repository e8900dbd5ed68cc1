"""Pipeline schedules: how many micro-batches a stage holds at once."""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from dscalc import codes
from dscalc.frozen import dataclass

if TYPE_CHECKING:
    from dscalc.records import Array, Layouts


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as data. Chunks in flight on stage i of p with v chunks a stage:
    min(m*v, constant + stages*p + after*(p-1-i) + virtual*(v-1)*p), then times ``share`` of the stage's layers.

    ``placement`` says which chunks a stage holds: ``loop`` (i, i+p, ...), ``vee`` (i and 2p-1-i), ``both`` (i and
    p-1-i).
    """

    name: str
    constant: float
    stages: float
    after: float
    virtual: float
    share: float
    placement: str
    all_losses: bool  # every micro-batch's logits are alive at once
    source: str


SCHEDULES: tuple[Schedule, ...] = (
    Schedule("1f1b", 1.0, 0.0, 1.0, 0.0, 1.0, "loop", False, "[Narayanan2021] section 2.2"),
    Schedule(
        "interleaved",
        1.0,
        0.0,
        2.0,
        1.0,
        1.0,
        "loop",
        False,
        "[Narayanan2021] section 2.2; [Korthikanti2022] section 4.2.3",
    ),
    Schedule("gpipe", float("inf"), 0.0, 0.0, 0.0, 1.0, "loop", True, "[Huang2019] section 2.3"),
    Schedule("zb-h1", 0.0, 1.0, 0.0, 0.0, 1.0, "loop", False, "[Qi2023] section 2.2"),
    Schedule("zb-h2", -1.0, 2.0, 0.0, 0.0, 1.0, "loop", False, "[Qi2023] section 2.3"),
    Schedule("zb-v", 0.0, 1.0, 0.0, 0.0, 1.0, "vee", False, "[Qi2024] table 1"),
    Schedule("dualpipe", 1.0, 1.0, 0.0, 0.0, 0.5, "both", False, "[DeepSeekV3] table 2"),
)
INTERLEAVED = codes.SCHEDULES.index("interleaved")


def chunks_per_stage(layouts: Layouts) -> Array:
    """Model chunks a stage runs as separate virtual stages.

    Args:
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        v of interleaved schedules, 1 elsewhere [chunks, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2.
    """
    import numpy as np

    return np.where(layouts.schedule == INTERLEAVED, layouts.vpp, 1.0)


@lru_cache(maxsize=1)
def _by_schedule() -> Array:
    import numpy as np

    return np.asarray(
        [[getattr(s, name) for s in SCHEDULES] for name in ("constant", "stages", "after", "virtual", "share")]
    )


def in_flight(layouts: Layouts, stage: Array) -> Array:
    """Micro-batches whose activations a stage holds at its fullest, in units of all the stage's layers.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        stage [index from 0, (kinds, n)]: pipeline stages.

    Returns:
        Micro-batches in flight [micro-batches, (kinds, n)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 2.2, [Huang2019] section 2.3, [Qi2023] section 2, [Qi2024] table 1, [DeepSeekV3] table
        2.
    """
    import numpy as np

    constant, stages, after, virtual, share = _by_schedule().take(layouts.schedule, axis=1)
    chunks = chunks_per_stage(layouts)
    base = constant + stages * layouts.pp + virtual * ((chunks - 1.0) * layouts.pp)
    limit = base + after * (layouts.pp - 1.0) - after * stage
    held: Array = np.minimum(layouts.n_micro * chunks, limit) * (share / chunks)
    return held
