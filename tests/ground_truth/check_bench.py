"""What ``.ci/bench`` compares: raw rows of a run against what the link was made to be.

check_bench.py bandwidth ROWS RATE_MBIT SOCKET_RATE
check_bench.py latency ROWS SOCKET_LATENCY
check_bench.py slow-node ANSWER.json HOST RATIO
check_bench.py equal ANSWER.json
check_bench.py kept ROWS LEAST
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from dscalc.answers.fit import fit
from dscalc.calibrate.rows import load_rows

PAYLOAD = 1448.0 / 1514.0  # TCP segment with time stamps over its Ethernet frame, as tbf counts it
WITHIN = 0.10
LATENCY_FACTOR = 2.0
SATURATING = ("all_reduce", "pair")
LEAST_SHARE = 1.0 / 3.0  # of the link, where an operation does not keep it busy
LARGEST = 3  # sizes of each operation: one may meet a moment when the machine does something else


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
    """Bandwidth of large messages, the median of three sizes, against the shaped rate less protocol overhead.

    All-reduce and the pair keep the link busy. gloo's others do not, whatever measures them: its reduce-scatter is a
    whole all-reduce, its all-to-all sends before it receives, its all-gather does in part, and a send-recv goes both
    ways at once only while both ranks are in step, which a busy machine prevents. These must not be quicker than the
    link, nor much slower than one way after the other.
    """
    expected = float(rate_mbit) * 1e6 / 8.0 * PAYLOAD
    by_socket = float(socket_rate)
    words = f"socket: {by_socket / 1e6:.2f} MB/s, {by_socket / expected - 1.0:+.1%} of {expected / 1e6:.2f} MB/s"
    good = say(abs(by_socket / expected - 1.0) <= WITHIN, words)
    by_op: dict[str, list[dict[str, Any]]] = {}
    for row in rows_of(path, "collective") + rows_of(path, "pair"):
        by_op.setdefault(row.get("op", "pair"), []).append(row)
    for op, rows in by_op.items():
        sizes = sorted(rows, key=lambda row: row["size_bytes"])[-LARGEST:]
        rates = [row["size_bytes"] / row["time_s"] * bus_factor(op, row.get("ranks", 2)) for row in sizes]
        if op == "pair":
            rates = [sizes[-1]["size_bytes"] / sizes[-1]["time_s"]]
        found = statistics.median(rates)
        off = found / expected - 1.0
        judged = op in SATURATING
        ok = abs(off) <= WITHIN if judged else LEAST_SHARE <= 1.0 + off <= 1.0 + WITHIN
        shown = ", ".join(f"{rate / 1e6:.2f}" for rate in rates)
        words = f"{op}: {found / 1e6:.2f} MB/s, {off:+.1%} (up to {sizes[-1]['size_bytes']:,} B: {shown})"
        good &= say(ok, words + ("" if judged else "; one way after the other would be half"))
        wrong = sum(row.get("wrong") or 0 for row in rows)
        good &= wrong == 0 or say(False, f"{op}: {wrong} wrong results")
    for each in fit(path).profiled.fits:
        op = each["op"].replace("-", "_")
        if op in SATURATING:
            found = each["pieces"][-1]["bandwidth_bytes_per_s"] * bus_factor(op, each["ranks"])
            off = found / expected - 1.0
            good &= say(abs(off) <= WITHIN, f"{op} as dscalc fit has it: {found / 1e6:.2f} MB/s, {off:+.1%}")
    return good & say(len(by_op) == 6, f"{len(by_op)} operations measured")


def groups(path: str, rate_mbit: str) -> bool:
    """An all-reduce of one rank a host has the link for itself; two such groups at once have half of it each."""
    expected = float(rate_mbit) * 1e6 / 8.0 * PAYLOAD
    rows = [row for row in rows_of(path, "collective") if row["op"] == "all_reduce"]
    scopes = {row["scope"] for row in rows}
    good = say(scopes == {"node", "one_a_node", "all", "one_a_node_each"}, f"places: {', '.join(sorted(scopes))}")
    for scope, share, at_once in (("one_a_node", 1.0, 1), ("one_a_node_each", 0.5, 2)):
        sizes = sorted((row for row in rows if row["scope"] == scope), key=lambda row: row["size_bytes"])[-LARGEST:]
        found = statistics.median(row["size_bytes"] / row["time_s"] for row in sizes)  # two ranks: as busbw
        good &= say({row["groups"] for row in sizes} == {at_once}, f"{scope}: {at_once} at once")
        off = found / (share * expected) - 1.0
        words = f"{scope}: {found / 1e6:.2f} MB/s, {off:+.1%} of {share * expected / 1e6:.2f}"
        good &= say(abs(off) <= WITHIN, words)
    return good


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


CHECKS = {
    "bandwidth": bandwidth,
    "groups": groups,
    "latency": latency,
    "slow-node": slow_node,
    "equal": equal,
    "kept": kept,
}

if __name__ == "__main__":
    sys.exit(0 if CHECKS[sys.argv[1]](*sys.argv[2:]) else 1)
