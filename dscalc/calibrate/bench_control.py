"""How the ranks of ``dscalc bench`` agree on what comes next, and how a run ends when one of them does not answer.

Everything goes through the key-value store of the launcher, never through the collectives under test: these may hang.
A thread of each rank says every second that it lives. Another one judges on rank 0: when an item is overdue, a rank
reports an error, or the launcher says stop, it finds out who is silent, writes that down and ends the process, because
the main thread may sit in a call that never returns. On the other ranks it ends the process when rank 0 is gone.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import timedelta
from typing import Any

from dscalc.calibrate.bench_place import Beat, Place, verdict
from dscalc.errors import InputError

BEAT_S = 1.0
JUDGE_S = 3.5  # between the two looks at who is alive
GRACE_S = 10.0  # that other ranks give rank 0 to judge
PATIENCE_S = 120.0  # for ranks to find each other
INTERRUPTED = 130

Judged = Callable[[str], None]


class Control:
    """One rank's line to the others."""

    def __init__(self, place: Place, timeout_s: float, judged: Judged) -> None:
        """Connect; returns when the store answers.

        Args:
            place: of this rank.
            timeout_s: how long an operation may take beyond what is expected.
            judged: called with what happened before the process is ended.
        """
        from torch.distributed import HashStore, PrefixStore, TCPStore

        self.place, self.timeout_s = place, timeout_s
        self.hosts: list[str] = []
        self.judged = judged
        self._item, self._inside, self._words = 0, False, "setting up"
        self._deadline = time.monotonic() + max(PATIENCE_S, timeout_s)
        self._ended = threading.Event()
        self._heard, self._refused = time.monotonic(), 0.0
        self._troubled = False
        self._verdict: str | None = None
        self._threads: list[threading.Thread] = []
        self._masked: Any = None
        if place.ranks == 1:
            self.store: Any = HashStore()
            return
        if not hasattr(signal, "sigtimedwait"):
            raise InputError("several ranks need Linux; one process measures itself anywhere")
        wait = timedelta(seconds=max(PATIENCE_S, timeout_s))
        serves = place.rank == 0 and not place.agent_store

        def client(is_master: bool) -> Any:
            raw = TCPStore(place.address, place.port, is_master=is_master, timeout=wait, wait_for_workers=False)
            return PrefixStore(f"dscalc/{place.attempt}", raw)

        self.store = client(serves)
        self._line = client(False)  # of the threads: a client that waits blocks its other users
        self._masked = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM, signal.SIGINT))
        self._threads = [threading.Thread(target=each, daemon=True) for each in (self._pulse, self._guard)]
        for thread in self._threads:
            thread.start()

    # ----------------------------------------------------------------------------------------------------- main thread
    def say(self, key: str, value: Any) -> None:
        """Publish a JSON value."""
        self.store.set(key, json.dumps(value))

    def hear(self, key: str) -> Any:
        """A JSON value, once somebody publishes it."""
        return self.hear_all([key])[0]

    def hear_all(self, keys: list[str]) -> list[Any]:
        """JSON values, once all are published; the thread ends the wait if they never are."""
        while True:
            try:
                self.store.wait(keys, timedelta(seconds=30))
                return [json.loads(value) for value in self.store.multi_get(keys)]
            except RuntimeError as error:
                if "imeout" not in str(error) and "imed out" not in str(error):
                    raise

    def forget(self, keys: Iterable[str]) -> None:
        """Remove values that have been read."""
        for key in keys:
            self.store.delete_key(key)

    def enter(self, item: int, words: str, expected_s: float, takes_part: bool) -> None:
        """This rank comes to an item that should take so long."""
        self._item, self._words, self._inside = item, words, takes_part
        self._deadline = time.monotonic() + self.timeout_s + 3.0 * expected_s

    def leave(self) -> None:
        """This rank is through with its item."""
        self._inside = False
        self._deadline = time.monotonic() + self.timeout_s

    def trouble(self, error: BaseException) -> None:
        """Report an error of this rank and wait for rank 0's verdict, which ends the process."""
        text = " ".join(str(error).split())[:300] or type(error).__name__
        if not self._threads:
            raise InputError(f"{text}, in: {self._words}") from None
        with suppress(RuntimeError):
            self.store.set(f"trouble/{self.place.rank}", text)
            self.store.set("trouble", text)
        time.sleep(self.timeout_s + JUDGE_S + 3.0 * GRACE_S)
        os._exit(1)

    def dismiss(self) -> None:
        """Send the other ranks home, without a fault of theirs: rank 0 says why it ends."""
        if self._threads:
            self._ended.set()
            with suppress(RuntimeError):
                self.store.set("verdict", "")
                time.sleep(2.0 * BEAT_S)  # the launcher takes the store away when this process ends

    def close(self) -> None:
        """End the thread; signals are as before."""
        self._ended.set()
        for thread in self._threads:
            thread.join(2.0 * BEAT_S)
        if self._masked is not None:
            signal.pthread_sigmask(signal.SIG_SETMASK, self._masked)

    # --------------------------------------------------------------------------------------------------------- threads
    def _pulse(self) -> None:
        """Say every second that this rank lives, and listen. A store that vanished may block this thread for long."""
        count = 0
        while not self._ended.wait(BEAT_S):
            count += 1
            try:
                self._line.set(f"beat/{self.place.rank}", json.dumps([count, self._item, self._inside]))
                if self._line.check(["trouble"]):
                    self._troubled = True
                if self._line.check(["verdict"]):
                    self._verdict = self._line.get("verdict").decode()
                self._heard, self._refused = time.monotonic(), 0.0
            except RuntimeError:
                self._refused = self._refused or time.monotonic()

    def _guard(self) -> None:
        """Decide when the process must end; waits for nothing but signals."""
        while not self._ended.is_set():
            caught = signal.sigtimedwait((signal.SIGTERM, signal.SIGINT), BEAT_S)
            now = time.monotonic()
            lost = now - self._heard > max(self.timeout_s, GRACE_S) or (self._refused and now - self._refused > GRACE_S)
            if self._ended.is_set():
                return
            if self._verdict is not None:
                os._exit(1 if self._verdict else 0)
            if self.place.rank == 0:
                if lost:
                    self.judged(f"the key-value store of the launcher stopped answering, in: {self._words}")
                    os._exit(1)
                if caught is not None or self._troubled or now > self._deadline:
                    self._judge(None if caught is None else signal.Signals(caught.si_signo))
            elif lost or now > self._deadline + GRACE_S + JUDGE_S:
                self._orphaned()
            elif caught is not None:
                with suppress(RuntimeError):
                    self._line.set(f"left/{self.place.rank}", "1")
                os._exit(1)

    def _orphaned(self) -> None:
        """Rank 0 does not answer: nobody else will say so."""
        if self.place.local_rank == 0:
            host = self.hosts[0] if self.hosts else self.place.address
            self.judged(f"rank 0 on node 0 ({host}) stopped answering, in: {self._words}")
        os._exit(1)

    def _beats(self) -> dict[int, Beat]:
        found = {}
        for rank in range(self.place.ranks):
            if self._line.check([f"beat/{rank}"]):
                found[rank] = Beat(*json.loads(self._line.get(f"beat/{rank}")))
        return found

    def _flags(self, name: str) -> Mapping[int, str]:
        keys = {rank: f"{name}/{rank}" for rank in range(self.place.ranks)}
        return {rank: self._line.get(key).decode() for rank, key in keys.items() if self._line.check([key])}

    def _judge(self, told: signal.Signals | None) -> None:
        """Find out who is at fault, say it, and end the process; ``told``: the launcher says to end."""
        if told is signal.SIGINT:
            self.judged("interrupted")
            os._exit(INTERRUPTED)
        text = "the key-value store of the launcher stopped answering"
        with suppress(RuntimeError):
            before = self._beats()
            time.sleep(JUDGE_S)
            after = self._beats()
            for rank in self._flags("left"):  # ended by its launcher: no fault of its own
                after[rank] = Beat(-1, self._item, True)
            text, ranks = verdict(before, after, self.place, self.hosts, self._flags("trouble"))
            if told is not None and not ranks:
                text = "the launcher ended the run"
        self.judged(f"{text}, in: {self._words}")
        with suppress(RuntimeError):
            self._line.set("verdict", text)
            time.sleep(2.0 * BEAT_S)  # the others read it while the launcher still serves the store
        os._exit(1)
