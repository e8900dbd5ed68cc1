"""Which network a log's messages of NCCL say that traffic between nodes went over."""

from __future__ import annotations

import re

SOCKETS = "sockets"
_SIGNS = (  # of a transport; the first that a log has, for NCCL also names what it tried and left
    ("EFA", re.compile(r"NET/OFI\b[^\n]{0,80}\bprovider is efa|NET/OFI Using transport protocol RDMA", re.IGNORECASE)),
    ("Slingshot", re.compile(r"NET/OFI\b[^\n]{0,80}\bprovider is cxi", re.IGNORECASE)),
    ("TCPXO", re.compile(r"Using network FasTrak|NET/FasTrak")),
    ("TCPX", re.compile(r"Using network GPUDirectTCPX|NET/GPUDirectTCPX")),
    ("RoCE", re.compile(r"NET/IB : Using[^\n]{0,80}:\d+/RoCE")),
    ("InfiniBand", re.compile(r"NET/IB : Using[^\n]{0,80}:\d+/IB")),
    (SOCKETS, re.compile(r"Using network Socket|NET/Socket : Using \[")),
)
LINKS = {  # ids of interconnects that begin so are of the transport
    "EFA": ("efa",),
    "Slingshot": ("slingshot",),
    "TCPXO": ("gpudirect-tcpxo",),
    "TCPX": ("gpudirect-tcpx",),
    "RoCE": ("roce", "ethernet"),
    "InfiniBand": ("ib-",),
}


def network_named(text: str) -> str:
    """The transport that a log names.

    >>> network_named("a:1:1 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB eth0:10.0.0.1<0>")
    'InfiniBand'

    Args:
        text: the log.

    Returns:
        A key of ``LINKS``, ``SOCKETS``, or nothing where it names none.
    """
    if "NET/" not in text and "Using network" not in text:
        return ""
    return next((name for name, sign in _SIGNS if sign.search(text)), "")


def goes_over(interconnect: str, network: str) -> bool:
    """Whether an interconnect is of a transport."""
    if network == "TCPX":
        return interconnect == "gpudirect-tcpx"
    return interconnect.startswith(LINKS.get(network, ("",)))
