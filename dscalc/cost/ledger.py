"""Sums of the activation ledger: which rows a layer keeps, and bytes per token by component and divisor."""

from __future__ import annotations

from dscalc.cost.ledger_rows import COMPONENTS, DIVISORS, ROWS, Case, Row
from dscalc.records import ModelShape, StackTable

NONE, SELECTIVE, FULL = range(3)  # codes.RECOMPUTES
FLASH, UNFUSED = range(2)  # codes.ATTENTIONS


def case_of(
    shape: ModelShape, stacks: StackTable, stack: int, attention: int, trained: tuple[str, ...] | None = None
) -> Case:
    """The features that select ledger rows.

    Args:
        shape [elements, (1,)]: the model.
        stacks [flags, (codes,)]: the stack table.
        stack [code, (1,)]: which stack.
        attention [code, (1,)]: 0 flash, 1 unfused.
        trained [names, (1,)]: adapter targets on a frozen base, None where every weight trains.

    Returns:
        The case.

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4; gated families train without dropout [Touvron2023].
    """
    return Case(
        shape=shape,
        unfused=attention == UNFUSED,
        norm_saved=float(stacks.norm_saved[stack]),
        mlp_saved=float(stacks.mlp_saved[stack]),
        rotated_kv_copy=bool(stacks.rotated_kv_copy[stack]),
        kv_repeat=bool(stacks.kv_repeat[stack]),
        expert_output_saved=bool(stacks.expert_output_saved[stack]),
        hidden_dropout=bool(stacks.hidden_dropout[stack]) and not shape.gated_mlp,
        attention_dropout=bool(stacks.attention_dropout[stack]) and not shape.gated_mlp,
        scores_bytes=float(stacks.scores_bytes[stack]),
        trained=trained,
    )


def kept_rows(case: Case, recompute: int, every_second_matmul: bool, layer_kind: str) -> list[Row]:
    """Rows that one layer keeps for backward.

    ``selective`` drops the attention core ([Korthikanti2022]), or, where a stack chooses operations, keeps the layer
    input,
    attention and every second matrix product ([torchtitan]). ``full`` keeps the layer input alone. A frozen linear
    layer needs its
    input only where an adapter on it trains ([Hu2022]).

    Args:
        case [flags, (1,)]: what decides which rows apply.
        recompute [code, (1,)]: 0 none, 1 selective, 2 full.
        every_second_matmul [flag, (1,)]: the stack's selective rule.
        layer_kind [name, (1,)]: ``dense`` or ``moe``.

    Returns:
        The rows.

    Raises:
        nothing.

    References:
        [Korthikanti2022] sections 4-5, [torchtitan] activation checkpointing.
    """
    chosen = recompute == SELECTIVE and every_second_matmul
    rows = [
        r
        for r in ROWS
        if r.layer_kind in ("both", layer_kind)
        and r.when(case)
        and (chosen or not r.selective_only)
        and (case.trained is None or not r.input_of or any(name in case.trained for name in r.input_of))
    ]
    if recompute == FULL:
        return [r for r in rows if r.component == "checkpoint"]
    if chosen:
        return [r for r in rows if r.every_second]
    if recompute == SELECTIVE:
        return [r for r in rows if not r.core]
    return rows


def row_bytes(row: Row, case: Case) -> float:
    """Bytes of one row per token (per token and key for scores), before division over ranks.

    Args:
        row [shape, (1,)]: the ledger row.
        case [flags, (1,)]: the model and its features.

    Returns:
        Bytes [bytes/token, (1,)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.
    """
    element_bytes = row.element_bytes(case) if callable(row.element_bytes) else row.element_bytes
    return float(row.width(case)) * float(element_bytes)


def coefficients(
    shape: ModelShape,
    stacks: StackTable,
    stack: int,
    recompute: int,
    attention: int,
    layer_kind: str,
    trained: tuple[str, ...] | None = None,
) -> tuple[tuple[float, ...], ...]:
    """Bytes per token of one layer, summed from the rows: component by divisor.

    Args:
        shape [elements, (1,)]: the model.
        stacks [flags, (codes,)]: the stack table.
        stack [code, (1,)]: which stack.
        recompute [code, (1,)]: 0 none, 1 selective, 2 full.
        attention [code, (1,)]: 0 flash, 1 unfused.
        layer_kind [name, (1,)]: ``dense`` or ``moe``.
        trained [names, (1,)]: adapter targets on a frozen base, None where every weight trains.

    Returns:
        ``coefficients[component][divisor]`` [bytes/token].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 4.
    """
    case = case_of(shape, stacks, stack, attention, trained)
    table = [[0.0] * len(DIVISORS) for _ in COMPONENTS]
    for row in kept_rows(case, recompute, bool(stacks.every_second_matmul[stack]), layer_kind):
        table[COMPONENTS.index(row.component)][DIVISORS.index(row.divisor)] += row_bytes(row, case)
    return tuple(tuple(row) for row in table)
