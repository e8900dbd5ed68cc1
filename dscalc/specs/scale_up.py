"""The scale-up link of a GPU: the rate its profile states, latency and efficiency of the interconnect it names."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from dscalc.specs import store
from dscalc.specs.hardware import GpuSpec
from dscalc.specs.links import InterconnectSpec
from dscalc.specs.quantity import Quantity

_LONGEST = 80  # characters of a name
_MAKERS = {"AMD": "xgmi-mi300x"}  # whose link stands in where a profile names none that is known; else NVLink
_NO_LINK = re.compile(r"none\b", re.IGNORECASE)


def scale_up_of(gpu: GpuSpec, profiles: Sequence[store.PathLike] = ()) -> InterconnectSpec | None:
    """The scale-up link of a GPU.

    The rate is the profile's own where it states one. Latency, efficiency and reduction are those of the interconnect
    that lists the GPU, else of the one that lists a GPU with the same ``scaleup_link``, else of the one whose id the
    first words of ``scaleup_link`` are (``NVLink4 x18``: nvlink4), else assumed.

    Args:
        gpu: profile of the GPU.
        profiles: the user's profile files or folders [paths].

    Returns:
        The interconnect; None where GPUs of that kind meet only over PCIe.
    """
    specs = [store.load_interconnect(name, profiles).spec for name in store.interconnect_ids(profiles)]
    listed = next((spec for spec in specs if gpu.id in spec.gpus), None)
    if listed is not None and _as_listed(gpu, listed):
        return listed
    named = gpu.scaleup_link is not None and not _NO_LINK.match(gpu.scaleup_link)
    stated = gpu.scaleup_bytes_per_s
    if stated == 0.0 or (listed is None and stated is None and not named):
        return None
    found = listed or _sister(gpu, specs) or _by_name(gpu, profiles)
    own = gpu.scaleup_bandwidth
    if own is None:
        return found
    rate = own.model_copy(update={"source": f"scaleup_bandwidth of {gpu.id}: {own.source}"})
    if found is None:
        return _assumed(gpu, rate)
    peer = gpu.p2p_bandwidth if found.peer_bandwidth is not None and gpu.p2p_bandwidth else found.peer_bandwidth
    return found.model_copy(update={"bandwidth": rate, "peer_bandwidth": peer})


def _as_listed(gpu: GpuSpec, listed: InterconnectSpec) -> bool:
    """Whether the profile says of the rate what the shipped one says, or nothing."""
    if gpu.scaleup_bandwidth is None:
        return True
    shipped = _shipped(gpu.id)
    return gpu.scaleup_bytes_per_s == (listed.bytes_per_s if shipped is None else shipped.scaleup_bytes_per_s)


def _shipped(name: str) -> GpuSpec | None:
    """The GPU of this package with that id, whatever a user's file says; None where there is none."""
    file = store.profile_root() / "gpus" / f"{name}.json"
    return GpuSpec.read(json.loads(file.read_text(encoding="utf-8"))) if file.is_file() else None


def _sister(gpu: GpuSpec, specs: Sequence[InterconnectSpec]) -> InterconnectSpec | None:
    """The interconnect of a shipped GPU whose link is described in the same words: the profile is a copy."""
    if gpu.scaleup_link is None:
        return None
    for spec in specs:
        for shipped in map(_shipped, spec.gpus):
            if shipped is not None and shipped.scaleup_link == gpu.scaleup_link:
                return spec
    return None


def _by_name(gpu: GpuSpec, profiles: Sequence[store.PathLike]) -> InterconnectSpec | None:
    """The scale-up interconnect whose id begins the description: ``NVLink4 x8``: nvlink4-x8, else nvlink4."""
    words = re.findall(r"[\w.-]+", gpu.scaleup_link or "")
    known = {store.fold_name(name): name for name in store.interconnect_ids(profiles)}
    for count in (3, 2, 1):
        name = known.get(store.fold_name("".join(words[:count])))
        if name is not None:
            spec = store.load_interconnect(name, profiles).spec
            if spec.scope == "scale-up" and spec.family != "pcie":
                return spec
    return None


def _assumed(gpu: GpuSpec, rate: Quantity) -> InterconnectSpec:
    """A link that no interconnect file describes: latency and efficiency of a likely one, and so assumed."""
    like = store.load_interconnect(_MAKERS.get(gpu.vendor, "nvlink4")).spec

    def taken(record: Quantity) -> Quantity:
        return record.model_copy(update={"kind": "assumed", "source": f"as {like.id}: no interconnect is this link"})

    peer = gpu.p2p_bandwidth
    return like.model_copy(
        update={
            "id": (gpu.scaleup_link or f"{gpu.id} scale-up")[:_LONGEST],
            "aliases": (),
            "bandwidth": rate,
            "peer_bandwidth": peer if peer is not None and peer.base < rate.base else None,
            "latency": taken(like.latency),
            "efficiency": taken(like.efficiency),
            "reduction": None,
            "gpus": (gpu.id,),
        }
    )
