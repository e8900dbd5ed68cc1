"""The axis table: what each degree means, the groups that follow from the two grids, and where a layout is allowed.

Importing this module does not import numpy, so that ``--help`` can read the table cheaply.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dscalc import codes
from dscalc.frozen import dataclass

if TYPE_CHECKING:
    from dscalc.records import Array, Layouts, Mask, ModelShape

DENSE_GRID = ("tp", "cp", "dp_shard", "dp_replicate", "pp")
EXPERT_GRID = ("etp", "ep", "edp", "pp")


@dataclass(frozen=True, slots=True)
class Groups:
    """Sizes of the groups a rank belongs to, derived from the dense and the expert grid; arrays of shape (n,) or
    (1,).
    """

    gpus: Array
    dp_shard: Array
    dp_cp: Array
    shard: Array  # dp_shard * cp: ranks that divide the state of dense tensors
    edp: Array  # expert-data-parallel ranks
    expert_shard: Array  # ranks that divide the state of expert tensors


@dataclass(frozen=True, slots=True)
class Rule:
    """Where a layout is illegal: ``illegal(layouts, groups, shape)`` is a mask, ``message`` says what is right."""

    name: str
    message: str
    illegal: Callable[[Layouts, Groups, ModelShape], Mask]


@dataclass(frozen=True, slots=True)
class Axis:
    """One parallel axis: ``divides`` names the tensor classes whose elements a rank holds 1/degree of."""

    name: str
    help: str
    default: int
    divides: tuple[str, ...]
    rules: tuple[Rule, ...] = ()


def groups(layouts: Layouts) -> Groups:
    """Group sizes from the degrees.

    Dense grid, inner first: tp, cp, dp_shard, dp_replicate, pp. Expert grid over the same ranks of a stage: etp, ep,
    expert-dp, pp.

    Args:
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        The groups [ranks, (n,)].

    Raises:
        nothing: fractional groups of illegal layouts are clipped at one rank.

    References:
        [Shoeybi2019], [Zhao2023] section 3.2 (hybrid sharding), [torchtitan] parallel dimensions.
    """
    import numpy as np

    dp_shard = layouts.dp / layouts.dp_replicate
    dp_cp = layouts.dp * layouts.cp
    stage = layouts.tp * dp_cp
    edp = stage / (layouts.etp * layouts.ep)
    return Groups(
        gpus=stage * layouts.pp,
        dp_shard=dp_shard,
        dp_cp=dp_cp,
        shard=np.maximum(dp_shard * layouts.cp, 1.0),
        edp=np.maximum(edp, 1.0),
        expert_shard=np.maximum(edp / layouts.dp_replicate, 1.0),
    )


@dataclass(frozen=True, slots=True)
class Strides:
    """Distances between neighbours in ranks; arrays of shape (n,) or (1,).

    ``stage``: between stages of a pipeline. ``near``: members of a data-parallel group (with its context-parallel
    ranks) that lie as close as its own stride says, infinity for all of them; the others lie ``far`` apart.
    """

    stage: Array
    near: Array
    expert_near: Array
    far: Array


def strides(layouts: Layouts) -> Strides:
    """Distances between ranks by the order in which the axes are laid out.

    In the order tp-cp-dp-pp a stage fills tp * cp * dp neighbouring ranks; in tp-cp-pp-dp a whole pipeline fills tp *
    cp * pp of them, and data-parallel ranks lie so far apart.

    Args:
        layouts [degrees, (n,)]: the layout columns.

    Returns:
        The distances [ranks, (n,)].

    Raises:
        nothing.

    References:
        [MegatronLM] parallel_state.py, RankGenerator (--use-tp-pp-dp-mapping); [Narayanan2021] section 3.2.
    """
    import numpy as np

    block = layouts.tp * layouts.cp
    inside = layouts.rank_order == codes.RANK_ORDERS.index("tp-cp-pp-dp")
    return Strides(
        stage=np.where(inside, block, block * layouts.dp),
        near=np.where(inside, layouts.cp, np.inf),
        expert_near=np.where(inside, np.maximum(block / (layouts.etp * layouts.ep), 1.0), np.inf),
        far=np.where(inside, block * layouts.pp, block),
    )


def _indivisible(whole: Array | float, part: Array) -> Mask:
    import numpy as np

    quotient = np.asarray(whole) / part
    return np.asarray(np.floor(quotient) != quotient)


def _no_experts(degree: str) -> Callable[[Layouts, Groups, ModelShape], Mask]:
    def illegal(layouts: Layouts, _: Groups, shape: ModelShape) -> Mask:
        value: Array = getattr(layouts, degree)
        return (value > 1.0) & (shape.experts == 0)

    return illegal


def _kv_heads(layouts: Layouts, _: Groups, shape: ModelShape) -> Mask:
    return _indivisible(float(shape.kv_heads), layouts.tp) & _indivisible(layouts.tp, layouts.tp * 0.0 + shape.kv_heads)


def _expert_grid(layouts: Layouts, groups_: Groups, shape: ModelShape) -> Mask:
    return _indivisible(layouts.tp * groups_.dp_cp, layouts.etp * layouts.ep) & (shape.experts > 0)


def _expert_replicas(layouts: Layouts, groups_: Groups, shape: ModelShape) -> Mask:
    sharded = layouts.tp * groups_.dp_cp / layouts.dp_replicate
    return _indivisible(sharded, layouts.etp * layouts.ep) & (shape.experts > 0) & (layouts.dp_replicate > 1.0)


def _expert_block(layouts: Layouts, _: Groups, shape: ModelShape) -> Mask:
    inside = (layouts.rank_order == codes.RANK_ORDERS.index("tp-cp-pp-dp")) & (layouts.pp > 1.0)
    mask: Mask = _indivisible(layouts.tp * layouts.cp, layouts.etp * layouts.ep) & inside & (shape.experts > 0)
    return mask


def _sequence(layouts: Layouts, _: Groups, __: ModelShape) -> Mask:
    import numpy as np

    halves = np.where(layouts.cp > 1.0, 2.0 * layouts.cp, 1.0)  # two halves a rank balance a causal ring
    return _indivisible(layouts.seq_len, halves)


def _schedule_is(layouts: Layouts, *names: str) -> Mask:
    mask: Mask = layouts.schedule == codes.SCHEDULES.index(names[0])
    for name in names[1:]:
        mask = mask | (layouts.schedule == codes.SCHEDULES.index(name))
    return mask


def _dualpipe(layouts: Layouts, _: Groups, __: ModelShape) -> Mask:
    two = layouts.pp * 0.0 + 2.0
    bad = _indivisible(layouts.pp, two) | _indivisible(layouts.n_micro, two) | (layouts.n_micro < 2.0 * layouts.pp)
    return _schedule_is(layouts, "dualpipe") & bad


AXES: tuple[Axis, ...] = (
    Axis(
        "tp",
        "Tensor-parallel degree: ranks that share each matrix multiplication.",
        1,
        ("tp", "kv", "vocab"),
        (
            Rule(
                "tp_heads",
                "--tp must divide the attention heads",
                lambda lay, _, shape: _indivisible(float(shape.heads), lay.tp),
            ),
            Rule("tp_kv_heads", "--tp must divide the key/value heads, or be a multiple of them", _kv_heads),
            Rule(
                "tp_shared_ffn",
                "--tp must divide the width of the shared experts",
                lambda lay, _, shape: _indivisible(float(shape.shared_ffn_hidden), lay.tp),
            ),
            Rule(
                "tp_ffn",
                "--tp must divide the MLP width",
                lambda lay, _, shape: _indivisible(float(shape.ffn_hidden), lay.tp),
            ),
        ),
    ),
    Axis(
        "cp",
        "Context-parallel degree: ranks that share each sequence.",
        1,
        ("tokens",),
        (
            Rule(
                "cp_seq_len",
                "--cp above 1 needs a --seq-len that 2 * cp divides",
                _sequence,
            ),
            Rule(
                "cp_ulysses_heads",
                "with --cp-comm ulysses, --cp must divide the heads of a tensor-parallel rank",
                lambda lay, _, shape: (lay.cp_comm == 2) & _indivisible(shape.heads / lay.tp, lay.cp),
            ),
        ),
    ),
    Axis(
        "dp",
        "Data-parallel degree; gpus = tp * pp * cp * dp.",
        1,
        (),
        (
            Rule(
                "dp_replicate",
                "--dp-replicate must divide --dp",
                lambda lay, _, __: _indivisible(lay.dp, lay.dp_replicate),
            ),
        ),
    ),
    Axis("dp_replicate", "Data-parallel replicas of a sharded group (hybrid sharding).", 1, ()),
    Axis("dp_shard", "Data-parallel ranks that shard the state (ZeRO, FSDP).", 1, ("state",)),
    Axis(
        "pp",
        "Pipeline stages.",
        1,
        ("layers",),
        (
            Rule(
                "pp_layers",
                "--pp times --vpp must not exceed the number of layers",
                lambda lay, _, shape: lay.pp * lay.vpp > shape.layers,
            ),
        ),
    ),
    Axis(
        "vpp",
        "Virtual stages (model chunks) per pipeline rank.",
        1,
        (),
        (
            Rule(
                "vpp_schedule",
                "--vpp above 1 needs --schedule interleaved and --pp above 1",
                lambda lay, _, __: (lay.vpp > 1.0) & ~(_schedule_is(lay, "interleaved") & (lay.pp > 1.0)),
            ),
            Rule(
                "interleaved_micro_batches",
                "an interleaved schedule needs a number of micro-batches that --pp divides",
                lambda lay, _, __: _schedule_is(lay, "interleaved") & _indivisible(lay.n_micro, lay.pp),
            ),
            Rule(
                "dualpipe",
                "dualpipe needs an even --pp and an even number of micro-batches, at least 2 * pp",
                _dualpipe,
            ),
            Rule(
                "zb_v_layers",
                "zb-v puts two chunks on each stage: 2 * pp must not exceed the number of layers",
                lambda lay, _, shape: _schedule_is(lay, "zb-v") & (2.0 * lay.pp > shape.layers),
            ),
        ),
    ),
    Axis(
        "ep",
        "Expert-parallel degree: ranks that share the experts of a layer.",
        1,
        ("expert",),
        (
            Rule("ep_experts", "--ep above 1 needs a model with experts", _no_experts("ep")),
            Rule(
                "ep_divides",
                "--ep must divide the number of experts",
                lambda lay, _, shape: _indivisible(float(shape.experts), lay.ep),
            ),
            Rule(
                "expert_replicas",
                "with --dp-replicate, --ep * --etp must divide tp * cp * dp-shard",
                _expert_replicas,
            ),
            Rule("expert_grid", "--ep * --etp must divide tp * cp * dp", _expert_grid),
            Rule("expert_block", "with --rank-order tp-cp-pp-dp, --ep * --etp must divide tp * cp", _expert_block),
        ),
    ),
    Axis(
        "etp",
        "Tensor-parallel degree inside each expert.",
        1,
        ("expert",),
        (
            Rule("etp_experts", "--etp above 1 needs a model with experts", _no_experts("etp")),
            Rule(
                "etp_ffn",
                "--etp must divide the width of an expert",
                lambda lay, _, shape: _indivisible(float(shape.moe_ffn_hidden), lay.etp),
            ),
        ),
    ),
    Axis("zero", "ZeRO stage: 0 nothing, 1 optimizer, 2 also gradients, 3 also weights (FSDP) sharded.", 0, ("state",)),
    Axis(
        "sequence_parallel",
        "Divide norms and residuals over the tensor-parallel ranks too.",
        1,
        ("hidden",),
        (
            Rule(
                "sp_seq_len",
                "sequence parallelism needs --seq-len / --cp divisible by --tp",
                lambda lay, _, __: (lay.sequence_parallel > 0.0) & _indivisible(lay.seq_len / lay.cp, lay.tp),
            ),
        ),
    ),
)


def rules() -> tuple[Rule, ...]:
    """Every legality rule in the written order in which a layout is rejected.

    Returns:
        The rules, axis by axis.

    Raises:
        nothing.

    References:
        [MegatronLM] argument validation.
    """
    return tuple(rule for axis in AXES for rule in axis.rules)
