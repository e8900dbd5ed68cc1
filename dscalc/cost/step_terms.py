"""The terms of a step: paths, formulas and sources, in the order in which they are shown."""

from __future__ import annotations

from dscalc.frozen import dataclass
from dscalc.records import Array
from dscalc.terms import LeafSpec

FITTED = "docs/explanation/step-time.md"


@dataclass(frozen=True, slots=True, eq=False)
class TimeLeaf:
    """One term of a step; arrays (n,). ``exposed_s`` add up to the step, ``busy_s`` runs whether hidden or not."""

    spec: LeafSpec
    exposed_s: Array
    busy_s: Array


def _spec(path: str, formula: str, source: str) -> LeafSpec:
    return LeafSpec(path, "s", formula, source)


SPECS: dict[str, LeafSpec] = {
    spec.path: spec
    for spec in (
        _spec(
            "compute/linear_layers",
            "m L_i sum of 3 * 2 T K N / (P_16 e F8) * (1 + K0 (1/K + 1/N + 1/T))",
            f"[Shoeybi2019]; {FITTED}",
        ),
        _spec(
            "compute/attention",
            "m L_i 3.5 * 2 T s a d_k / t * (1 + 330/s) / (P_16 e_fa), causal",
            f"[Dao2023]; {FITTED}",
        ),
        _spec(
            "compute/experts",
            "m L_i 3 * 2 T top_k h f_e / t at the rate of experts, passes over their weights, and routing",
            f"[Shazeer2017]; {FITTED}",
        ),
        _spec("compute/elementwise", "m L_i k_el * 2 bytes * passes / (e_m HBM)", f"[Korthikanti2022]; {FITTED}"),
        _spec("compute/recompute", "m L_i forward once more of what was not kept", "[Korthikanti2022] section 5"),
        _spec("compute/embedding", "m 5 passes over T h", "[Definition]"),
        _spec(
            "compute/head", "m 3 * 2 T h V / t / (P_16 e) * (1 + K0 (1/h + t/V + 1/T))", "[Chowdhery2022] appendix B"
        ),
        _spec("compute/loss", "m ce * 2 T V / t / (e_m HBM)", FITTED),
        _spec("overhead/host", "m L_i (((gpu + E/e gap)^6 + host^6)^(1/6) - gpu): the GPU waits for launches", FITTED),
        _spec(
            "communication/tp",
            "m L_i x_tp (collectives of a layer and their skew), at least what outlasts computing",
            "[Shoeybi2019] section 3",
        ),
        _spec(
            "communication/cp", "m L_i key and value around the ring, less the attention that hides them", "[Liu2023]"
        ),
        _spec(
            "communication/ep",
            "m L_i x_ep (dispatch and combine), at least what outlasts computing",
            "[Shazeer2017]; [DeepEP]",
        ),
        _spec("communication/fsdp", "m L_i ((layer^q + gather^q)^(1/q) - layer)", f"[Zhao2023]; {FITTED}"),
        _spec(
            "communication/pp",
            "m (x_pp messages to the neighbours, and a wait for each)",
            "[Narayanan2021] section 2.2",
        ),
        _spec("pipeline/bubble", "pipeline time less m times its slowest stage", "[Narayanan2021] section 2.2"),
        _spec(
            "communication/dp",
            "x_dp (gradients and weights), at least what outlasts p micro-batches; skew per doubling of nodes",
            "[Rajbhandari2020] section 7",
        ),
        _spec("optimizer/update", "30 bytes * owned parameters / (e_m HBM)", f"[PyTorch]; {FITTED}"),
        _spec("overhead/step", "launches of optimizer, clipping, logging", FITTED),
    )
}
