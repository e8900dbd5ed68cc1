"""Time of a layer, of embedding and of head: operations on the GPU, what communication adds, and the host's floor."""

from __future__ import annotations

import numpy as np

from dscalc import codes
from dscalc.cost.exchange import MicroBatchExchange
from dscalc.cost.operations import Pace, Time, operation_seconds, works
from dscalc.frozen import dataclass
from dscalc.records import Array, Engine, Layouts, ModelShape, PaceConstants

# groups of operations as answers show them, with their formula
GROUPS: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("compute/linear_layers", ("linear",)),
    ("compute/attention", ("core",)),
    ("compute/experts", ("expert", "routing", "weights")),
    ("compute/elementwise", ("stream",)),
)
TP_COLLECTIVES, TP_AGAIN = 4.0, 2.0  # a layer forward and backward; and under full recompute
DUALPIPE = codes.SCHEDULES.index("dualpipe")
AGAIN_OF_ALL = 1.0 / 3.0


@dataclass(frozen=True, slots=True, eq=False)
class LayerTime:
    """One layer and micro-batch; arrays (n,). ``compute`` holds one entry a group of ``GROUPS``."""

    compute: tuple[Array, ...]
    again: Array  # recompute
    tp: Array
    tp_exposed: Array
    cp: Array
    cp_exposed: Array
    ep: Array
    ep_exposed: Array
    host: Array  # time in which the host launches it
    waits: Array  # how much longer than the GPU's time that makes the layer
    forward: Array  # share of the layer's time that is forward
    flop: Array  # executed, recompute included

    @property
    def gpu(self) -> Array:
        """Computing on the GPU."""
        total = self.compute[0]
        for part in self.compute[1:]:
            total = total + part
        return total + self.again

    @property
    def exposed(self) -> Array:
        """Communication that compute does not hide."""
        return self.tp_exposed + self.cp_exposed + self.ep_exposed

    @property
    def whole(self) -> Array:
        """The layer's time, gathering of weights apart."""
        return self.gpu + self.exposed + self.waits


@dataclass(frozen=True, slots=True, eq=False)
class EndTime:
    """Embedding, head and loss of one micro-batch; arrays (n,)."""

    embedding: Array
    head: Array
    loss: Array
    flop: Array  # of the head, executed


def soft_maximum(first: Array, second: Array, power: Array | float) -> Array:
    """(x^q + y^q)^(1/q), a maximum without a corner.

    Args:
        first, second [s, (n,)]: what runs side by side.
        power [-, (n,)]: q; 1 adds, infinity takes the larger.

    Returns:
        Time [s, (n,)].

    Raises:
        nothing.

    References:
        [Definition].
    """
    most = np.maximum(first, second)
    ratio = np.minimum(first, second) / np.where(most > 0.0, most, 1.0)
    return np.asarray(most * np.power(1.0 + np.power(ratio, power), 1.0 / np.asarray(power)))


def layer_times(
    shape: ModelShape,
    layouts: Layouts,
    engine: Engine,
    pace: Pace,
    constants: PaceConstants,
    sent: MicroBatchExchange,
    recomputed: Array,
    frozen: bool = False,
) -> tuple[LayerTime, LayerTime, EndTime]:
    """A dense layer, a layer with experts, and the ends of the model, one micro-batch each.

    Args:
        shape [elements, (1,)]: the model.
        layouts [degrees, (n,)]: the layout columns.
        engine [FLOP/s, (n,)]: what the GPU sustains.
        pace [s, (n,)]: how the stack of each layout spends time.
        constants [-, (1,)]: what is the same everywhere.
        sent [s, (n,)]: communication.
        recomputed [fraction, (n,)]: share of a stage's layers that full recompute covers.
        frozen [flag, (1,)]: matrix products make no weight gradients, as under low-rank adapters.

    Returns:
        Dense layer, layer with experts (the dense one where there is none), ends [s, (n,)].

    Raises:
        nothing.

    References:
        [Korthikanti2022] section 5, [Narayanan2021] section 3, [DeepSeekV3] section 3.2.1 for DualPipe;
        fitted, see docs/explanation/step-time.md.
    """
    unaligned = shape.head_dim % int(constants.aligned_to) != 0
    timed = [(w, operation_seconds(w, engine, pace, constants, unaligned)) for w in works(shape, layouts, frozen)]
    zero = 0.0 * (layouts.tp + layouts.seq_len + layouts.micro_batch + engine.peak_flop_per_s + sent.tp_layer_s)
    full = (layouts.recompute == 2) * recomputed
    again_all = np.where(layouts.recompute == 2, recomputed, 1.0)
    count = TP_COLLECTIVES + TP_AGAIN * full
    grouped = layouts.tp > 1.0
    between = constants.tp_node_skew_s * np.maximum(sent.tp_domains - 1.0, 0.0)
    skew = constants.tp_skew_s * np.log2(np.maximum(sent.tp_inside, 1.0)) + between
    tp = sent.tp_layer_s + np.where(grouped, count * skew, 0.0)
    collectives = np.where(grouped, count, 0.0) * constants.host_collective_s
    leaves = sent.pp_domains > 1.0
    floor = pace.floor_s + pace.floor_tp_s * layouts.tp
    floor = np.where(leaves & (floor > 0.0), floor + count * between, 0.0)

    local = float(max(shape.experts, 1)) / layouts.ep
    beside = np.where(layouts.schedule == DUALPIPE, 0.0, 1.0)  # dispatch runs beside the other direction's compute

    def layer(kind: str, expert: float) -> LayerTime:
        mine = [(w, t) for w, t in timed if w.operation.part in ("layer", kind)]
        compute = tuple(
            sum((t.forward + t.backward for w, t in mine if w.operation.kind in kinds), start=zero)
            + (
                sum((t.forward + t.backward for w, t in mine if w.operation.kind == "product"), start=zero)
                if i == 0
                else 0.0
            )
            for i, (_, kinds) in enumerate(GROUPS)
        )
        ahead = sum((t.forward for _, t in mine), start=zero)
        again = sum((t.again for _, t in mine), start=zero) * again_all
        attention = sum(
            (t.forward + t.backward + t.again * again_all for w, t in mine if w.operation.kind == "core"), start=zero
        )
        gpu = compute[0]
        for part in compute[1:]:
            gpu = gpu + part
        gpu = gpu + again
        cp = sent.cp_layer_s + zero
        cp_exposed = np.where(sent.cp_hides > 0.0, np.maximum(cp - attention, 0.0), cp)
        lasts = np.maximum(sent.tp_layer_s - gpu - sent.tp_layer_s * pace.tp_exposed, 0.0)
        tp_exposed = tp * pace.tp_exposed + lasts  # of what is on the wire no more hides than there is computing
        ep = sent.ep_layer_s * expert + zero
        ep_exposed = np.maximum(ep * pace.ep_exposed * beside, ep - gpu)
        busy = gpu + tp_exposed + cp_exposed + ep_exposed
        launched = 1.0 + full * AGAIN_OF_ALL
        host = (pace.host_moe_layer_s if expert else pace.host_layer_s) * launched + collectives
        gaps = expert * pace.host_expert_s * local * launched  # between products of single experts, however large
        host = np.maximum(host, floor)
        flop = sum((w.forward_flop * (1.0 + w.again * again_all) + w.backward_flop for w, _ in mine), start=zero)
        return LayerTime(
            compute=compute,
            again=again,
            tp=tp + zero,
            tp_exposed=tp_exposed + zero,
            cp=cp,
            cp_exposed=cp_exposed,
            ep=ep,
            ep_exposed=ep_exposed,
            host=host + zero,
            waits=soft_maximum(busy + gaps, host, constants.floor_power) - busy,
            forward=ahead / gpu,
            flop=flop,
        )

    dense = layer("dense", 0.0)
    has_experts = bool(shape.moe_layer) and any(shape.moe_layer)
    ends: dict[str, Time] = {w.operation.name: t for w, t in timed if w.operation.part in ("embedding", "head")}
    head = next(w for w, _ in timed if w.operation.name == "projection")
    return (
        dense,
        layer("moe", 1.0) if has_experts else dense,
        EndTime(
            embedding=ends["lookup"].forward + ends["lookup"].backward + zero,
            head=ends["projection"].forward + ends["projection"].backward + zero,
            loss=ends["loss"].forward + ends["loss"].backward + zero,
            flop=head.forward_flop + head.backward_flop + zero,
        ),
    )
