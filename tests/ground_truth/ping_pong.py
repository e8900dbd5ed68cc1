"""An independent measure of a link: a socket that answers each message, and one that sends a lot; no torch, no dscalc.

ping_pong.py serve ADDRESS PORT
ping_pong.py latency ADDRESS PORT    prints the median one-way time of 8 bytes [s]
ping_pong.py rate ADDRESS PORT       prints the rate at which bytes arrive [bytes/s]
"""

from __future__ import annotations

import socket
import statistics
import sys
import time

ROUNDS = 300
BULK_BYTES = 16 << 20
SMALL = b"8 bytes."
WAIT_S = 60.0


def receive(connection: socket.socket, count: int) -> None:
    """Read so many bytes."""
    left = count
    while left:
        got = connection.recv(min(left, 1 << 16))
        if not got:
            raise EOFError
        left -= len(got)


def serve(address: str, port: int) -> None:
    """Answer two connections: one of small messages, one of a large one."""
    with socket.create_server((address, port)) as server:
        server.settimeout(WAIT_S)
        for _ in range(2):
            connection, _ = server.accept()
            with connection:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                connection.settimeout(WAIT_S)
                kind = connection.recv(1)
                if kind == b"L":
                    for _ in range(ROUNDS):
                        receive(connection, len(SMALL))
                        connection.sendall(SMALL)
                else:
                    receive(connection, BULK_BYTES)
                    connection.sendall(SMALL)


def connect(address: str, port: int, kind: bytes) -> socket.socket:
    """Connect, also while the server still starts."""
    until = time.monotonic() + WAIT_S
    while True:
        try:
            connection = socket.create_connection((address, port), timeout=WAIT_S)
            break
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.1)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.sendall(kind)
    return connection


def latency(address: str, port: int) -> float:
    """Half of the median time there and back [s]."""
    times = []
    with connect(address, port, b"L") as connection:
        for _ in range(ROUNDS):
            start = time.perf_counter()
            connection.sendall(SMALL)
            receive(connection, len(SMALL))
            times.append((time.perf_counter() - start) / 2.0)
    return statistics.median(times[ROUNDS // 10 :])


def rate(address: str, port: int) -> float:
    """Bytes over the time until the other side has them all [bytes/s]."""
    data = bytes(BULK_BYTES)
    with connect(address, port, b"R") as connection:
        start = time.perf_counter()
        connection.sendall(data)
        receive(connection, len(SMALL))
        return BULK_BYTES / (time.perf_counter() - start)


if __name__ == "__main__":
    what, where, at = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if what == "serve":
        serve(where, at)
    else:
        print({"latency": latency, "rate": rate}[what](where, at))
