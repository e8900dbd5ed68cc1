"""What ``.ci/bench`` compares: raw rows of a run against what the link was made to be.

check_bench.py bandwidth ROWS RATE_MBIT SOCKET_RATE
check_bench.py latency ROWS SOCKET_LATENCY
check_bench.py slow-node ANSWER.json HOST RATIO
check_bench.py equal ANSWER.json
check_bench.py kept ROWS LEAST
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from dscalc.calibrate.rows import load_rows

PAYLOAD = 1448.0 / 1514.0  # TCP segment with time stamps over its Ethernet frame, as tbf counts it
WITHIN = 0.10
LATENCY_FACTOR = 2.0
SATURATING = ("all_reduce", "send_recv", "pair")
HALF_DUPLEX = 0.5


def bus_factor(op: str, ranks: int) -> float:
    """What nccl-tests multiplies the algorithm bandwidth by (its doc/PERFORMANCE.md)."""
    if op == "all_reduce":
        return 2.0 * (ranks - 1) / ranks
    return 1.0 if op in ("send_recv", "pair") else (ranks - 1) / ranks


def rows_of(path: str, kind: str) -> list[dict[str, Any]]:
    """Rows of one kind."""
    return [row for _, row in load_rows(path)[0] if row["kind"] == kind]


def say(ok: bool, text: str) -> bool:
    """One line of the report."""
    print(f"  {'ok  ' if ok else 'FAIL'} {text}")
    return ok


def bandwidth(path: str, rate_mbit: str, socket_rate: str) -> bool:
    """Bandwidth of the largest message of each operation against the shaped rate less protocol overhead.

    All-reduce, send-recv and the pair keep the link busy. gloo's others do not, whatever measures them: its
    reduce-scatter is a whole all-reduce, its all-to-all sends before it receives, and its all-gather does in part.
    These must not be quicker than the link, nor slower than one way after the other.
    """
    expected = float(rate_mbit) * 1e6 / 8.0 * PAYLOAD
    by_socket = float(socket_rate)
    words = f"socket: {by_socket / 1e6:.2f} MB/s, {by_socket / expected - 1.0:+.1%} of {expected / 1e6:.2f} MB/s"
    good = say(abs(by_socket / expected - 1.0) <= WITHIN, words)
    largest: dict[str, dict[str, Any]] = {}
    for row in rows_of(path, "collective") + rows_of(path, "pair"):
        op = row.get("op", "pair")
        if op not in largest or row["size_bytes"] > largest[op]["size_bytes"]:
            largest[op] = row
    for op, row in largest.items():
        found = row["size_bytes"] / row["time_s"] * bus_factor(op, row.get("ranks", 2))
        off = found / expected - 1.0
        judged = op in SATURATING
        ok = abs(off) <= WITHIN if judged else HALF_DUPLEX - 1.0 - WITHIN <= off <= WITHIN
        words = f"{op} of {row['size_bytes']:,} B: {found / 1e6:.2f} MB/s, {off:+.1%}"
        good &= say(ok, words + ("" if judged else " (between one way after the other and both at once)"))
        good &= row.get("wrong") in (0, None) or say(False, f"{op}: {row['wrong']} wrong results")
    return good & say(len(largest) == 6, f"{len(largest)} operations measured")


def latency(path: str, socket_latency: str, only_show: str = "") -> bool:
    """One way of the smallest message between two nodes against the socket's.

    On a link without delay it is only shown: there gloo and the scheduler of the machine are measured, not the link.
    """
    expected = float(socket_latency)
    small = [row for row in rows_of(path, "pair") if row["size_bytes"] == 8]
    found = min(row["time_s"] for row in small)
    words = f"one way {found * 1e6:.0f} us, socket {expected * 1e6:.0f} us: {found / expected:.2f} times"
    if only_show:
        print(f"       {words} (not judged: the link has no delay)")
        return True
    return say(expected / LATENCY_FACTOR <= found <= expected * LATENCY_FACTOR, words)


def slow_node(path: str, host: str, ratio: str) -> bool:
    """The one slowed host is named, and nobody else; by how much, within a quarter of what the link says."""
    slow = [each for each in json.loads(Path(path).read_text())["result"]["slow"] if each["what"] != "rank"]
    for each in slow:
        print(f"       {each['what']} {each['hosts']}: {each['by_fraction']:+.0%} ({each['evidence']})")
    good = say([each["hosts"] for each in slow] == [[host]], f"{host} is found, and it alone")
    if good:
        off = (1.0 + slow[0]["by_fraction"]) / float(ratio) - 1.0
        good &= say(abs(off) <= 0.25, f"by how much: {1.0 + slow[0]['by_fraction']:.2f} times, {float(ratio):.2f} made")
    return good


def equal(path: str) -> bool:
    """Nothing is called slow where all links are equal."""
    slow = [each for each in json.loads(Path(path).read_text())["result"]["slow"] if each["what"] != "rank"]
    return say(not slow, f"equal hosts: {len(slow)} nodes or links called slow")


def kept(path: str, least: str) -> bool:
    """What was measured before the fault is there, and the fault is said."""
    measured = [row for _, row in load_rows(path)[0] if "time_s" in row]
    failures = rows_of(path, "failure")
    good = say(len(measured) >= int(least), f"{len(measured)} measurements kept")
    return good & say(len(failures) == 1, f"said in the rows: {[row['message'] for row in failures]}")


CHECKS = {"bandwidth": bandwidth, "latency": latency, "slow-node": slow_node, "equal": equal, "kept": kept}

if __name__ == "__main__":
    sys.exit(0 if CHECKS[sys.argv[1]](*sys.argv[2:]) else 1)
