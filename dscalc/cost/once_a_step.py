"""What a step spends once, whatever its micro-batches take: gradients reduced, weights gathered, the optimizer."""

from __future__ import annotations

import numpy as np

from dscalc.cost.axes import groups
from dscalc.cost.exchange import StepExchange
from dscalc.cost.operations import pace_of
from dscalc.frozen import dataclass
from dscalc.records import Array, Engine, Layouts, PaceConstants, PaceTable


@dataclass(frozen=True, slots=True, eq=False)
class OnceAStep:
    """Seconds of a step, micro-batches apart; arrays (n,)."""

    gathered_s: Array  # weights gathered and gradients reduced unit by unit, all of it
    exposed_s: Array  # share of the reduction that nothing hides
    behind_s: Array  # all of the reduction where it runs behind the backward, nothing elsewhere
    skew_s: Array
    broadcast_s: Array
    copies_s: Array  # weights that two stages hold
    busy_s: Array  # the reduction and the last three
    update_s: Array  # optimizer
    misaligned: Array  # 1: a group straddles domains


def once_a_step(
    layouts: Layouts, engine: Engine, table: PaceTable, constants: PaceConstants, sent: StepExchange
) -> OnceAStep:
    """What a step spends once.

    Args:
        layouts [degrees, (n,)]: the layout columns.
        engine [FLOP/s, (n,)]: what the GPU sustains.
        table [per code, (codes,)]: how stacks spend time.
        constants [-, (1,)]: what is the same everywhere.
        sent [s, (n,)]: what is exchanged.

    Returns:
        The parts [s, (n,)].

    Raises:
        nothing.

    References:
        [Rajbhandari2020] section 7; fitted, see docs/explanation/step-time.md.
    """
    pace, derived = pace_of(table, layouts, engine), groups(layouts)
    replicas = (derived.dp_cp > 1.0) & (sent.dp_s > 0.0)
    skew = np.where(replicas, constants.dp_skew_s * np.log2(np.maximum(sent.dp_domains, 1.0)), 0.0)
    broadcast = np.where((layouts.zero > 0.0) & (layouts.dp > 1.0), pace.owner_broadcast_s * derived.dp_shard, 0.0)
    # a stack that reduces after backward hides nothing, its share says how the network differs from the formula's
    behind = layouts.books.stacks.gradient_overlap[layouts.stack] > 0.0
    memory = engine.memory_bytes_per_s * engine.memory_fraction
    return OnceAStep(
        gathered_s=sent.fsdp_s * np.where(sent.dp_domains > 1.0, pace.gather_slowdown, 1.0),
        exposed_s=sent.dp_s * pace.dp_exposed,
        behind_s=np.where(behind, sent.dp_s, 0.0),
        skew_s=skew,
        broadcast_s=broadcast,
        copies_s=sent.pp_step_s,
        busy_s=sent.dp_s + skew + broadcast + sent.pp_step_s,
        update_s=constants.optimizer_bytes * sent.owned_parameters / memory,
        misaligned=sent.misaligned,
    )
