"""What ``dscalc bench`` does with torch: devices, timers, kernels, collectives; one path for both backends."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

from dscalc.calibrate.bench_place import Facts, Place
from dscalc.calibrate.bench_plan import Calls, Item, World, groups_of, pair_rounds
from dscalc.errors import InputError
from dscalc.units import KIB, MIB, MILLI

CHECKED = 16 * MIB  # results of messages up to here are compared with what they must be
LARGE = 256 * MIB
FP8_FROM = (8, 9)  # compute capability
LAUNCHES = 200  # of an empty kernel, timed together
Call = Callable[[], object]


class CannotError(Exception):
    """This machine has no such operation."""


def need_torch() -> Any:
    """The torch module.

    Raises:
        InputError: it is not installed.
    """
    try:
        import torch
    except ImportError:
        raise InputError("measuring needs PyTorch; install it with: pip install 'dscalc[bench]'") from None
    return torch


class Device:
    """What one rank computes and communicates on."""

    def __init__(self, place: Place) -> None:
        """Take the GPU of this rank, or the CPU where torch finds none."""
        torch = self.torch = need_torch()
        self.place = place
        self.cuda = bool(torch.cuda.is_available())
        if self.cuda:
            if place.local_rank >= torch.cuda.device_count():
                raise InputError(
                    f"{place.ranks_per_node} ranks on a node with {torch.cuda.device_count()} GPUs; "
                    "start as many as there are (--nproc-per-node)"
                )
            self.device = torch.device("cuda", place.local_rank)
            torch.cuda.set_device(self.device)
        else:
            self.device = torch.device("cpu")
            mine = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            torch.set_num_threads(max(1, mine // place.ranks_per_node))
        self._groups: dict[tuple[int, ...], Any] = {}

    # ------------------------------------------------------------------------------------------------------------ facts
    def facts(self) -> Facts:
        """What this rank says of itself."""
        torch, place = self.torch, self.place
        host = socket.gethostname().partition(".")[0]
        if not self.cuda:
            memory = _free_host_bytes() // place.ranks_per_node
            return Facts(
                host,
                place.ranks_per_node,
                place.local_rank,
                "CPU",
                "gloo",
                memory,
                ("fp32", "bf16"),
                torch.__version__,
                "gloo",
            )
        fp8 = torch.cuda.get_device_capability(self.device) >= FP8_FROM and hasattr(torch, "float8_e4m3fn")
        free, _ = torch.cuda.mem_get_info(self.device)
        version = "nccl"
        with suppress(AttributeError, RuntimeError):
            version = "nccl " + ".".join(str(part) for part in torch.cuda.nccl.version())
        return Facts(
            host,
            place.ranks_per_node,
            place.local_rank,
            torch.cuda.get_device_name(self.device),
            "nccl",
            int(free),
            ("bf16", "fp16", "fp8") if fp8 else ("bf16", "fp16"),
            torch.__version__,
            version,
        )

    # ----------------------------------------------------------------------------------------------------------- groups
    def connect(self, store: Any, world: World, scopes: Sequence[str], patience_s: float) -> None:
        """Make the process group of all ranks and those of each scope, and let each of them talk once."""
        if world.ranks == 1:
            return
        import torch.distributed as dist

        # The watch of Control ends a run that hangs; the library's own would abort first and name nobody.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "0")
        wait = timedelta(seconds=patience_s)
        dist.init_process_group(
            world.backend,
            store=dist.PrefixStore("groups", store),
            rank=self.place.rank,
            world_size=world.ranks,
            timeout=wait,
        )
        self._groups[tuple(range(world.ranks))] = dist.group.WORLD
        for scope in scopes:
            for members in groups_of(scope, world):
                if tuple(members) not in self._groups:
                    self._groups[tuple(members)] = dist.new_group(members, timeout=wait)
        small = self._zeros(1, self.torch.float32)
        for ranks, group in self._groups.items():
            if self.place.rank in ranks:
                dist.all_reduce(small, group=group)
        self._sync()

    def disconnect(self) -> None:
        """Leave the process groups."""
        if self._groups:
            import torch.distributed as dist

            with suppress(RuntimeError):
                dist.destroy_process_group()

    # ----------------------------------------------------------------------------------------------------------- timing
    def measure(self, item: Item, calls: Calls, world: World) -> dict[str, Any]:
        """Times of one item on this rank: ``{"t": [seconds of a call, one a sample], ...}``.

        Raises:
            CannotError: there is no such operation here.
        """
        try:
            if item.kind == "collective":
                return self._collective(item, calls, world)
            if item.kind == "pair":
                return self._pair(item, calls, world)
            if item.kind == "overlap":
                return self._overlap(item, calls, world)
            call, count = self._kernel(item)
            return {"t": [t / count for t in self._time(call, calls)]}
        finally:
            if self.cuda and item.size_bytes >= LARGE:
                self.torch.cuda.empty_cache()  # blocks of one size do not serve the next

    def _sync(self) -> None:
        if self.cuda:
            self.torch.cuda.synchronize(self.device)

    def _zeros(self, count: int, dtype: Any) -> Any:
        return self.torch.zeros(count, dtype=dtype, device=self.device)

    def _time(self, call: Call, calls: Calls) -> list[float]:
        """Seconds of a call in each sample: device events on a GPU, else the clock."""
        for _ in range(calls.warmups):
            call()
        self._sync()
        if not self.cuda:
            found = []
            for _ in range(calls.samples):
                start = time.perf_counter()
                for _ in range(calls.each):
                    call()
                found.append((time.perf_counter() - start) / calls.each)
            return found
        marks = [self.torch.cuda.Event(enable_timing=True) for _ in range(calls.samples + 1)]
        marks[0].record()
        for mark in marks[1:]:
            for _ in range(calls.each):
                call()
            mark.record()
        self._sync()
        spans = pairwise(marks)
        return [_seconds(start, end) / calls.each for start, end in spans]

    # ---------------------------------------------------------------------------------------------------------- kernels
    def _kernel(self, item: Item) -> tuple[Call, int]:
        """A call, and how many kernels it runs."""
        torch = self.torch
        if item.kind == "launch":
            one = self._zeros(1, torch.float32)

            def launches() -> None:
                for _ in range(LAUNCHES):
                    one.add_(1.0)

            return launches, LAUNCHES
        if item.kind == "memory_copy":
            source = self._zeros(item.size_bytes, torch.uint8).fill_(1)
            target = torch.empty_like(source)
            return lambda: target.copy_(source), 1
        return self._product(item), 1

    def _product(self, item: Item) -> Call:
        torch = self.torch
        if item.dtype == "fp8":
            return self._product_fp8(item)
        dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[item.dtype]
        a = torch.randn(item.m, item.k, device=self.device).to(dtype)
        b = torch.randn(item.n, item.k, device=self.device).to(dtype).t()  # as a layer's weight lies
        out = torch.empty(item.m, item.n, dtype=dtype, device=self.device)
        return lambda: torch.mm(a, b, out=out)

    def _product_fp8(self, item: Item) -> Call:
        torch = self.torch
        try:
            a = torch.randn(item.m, item.k, device=self.device).to(torch.float8_e4m3fn)
            b = torch.randn(item.n, item.k, device=self.device).to(torch.float8_e4m3fn).t()
            one = torch.ones((), device=self.device)

            def call() -> object:
                return torch._scaled_mm(a, b, scale_a=one, scale_b=one, out_dtype=torch.bfloat16)

            call()
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise CannotError(f"fp8 products: {error}") from None
        return call

    # ------------------------------------------------------------------------------------------------------ collectives
    def _members(self, scope: str, world: World) -> list[int] | None:
        return next((g for g in groups_of(scope, world) if self.place.rank in g), None)

    def _collective(self, item: Item, calls: Calls, world: World) -> dict[str, Any]:
        members = self._members(item.scope, world)
        if members is None:
            return {}
        call, check = self._operation(item.op, item.size_bytes, members)
        wrong = check() if item.size_bytes <= CHECKED else None
        return {"t": self._time(call, calls), "wrong": wrong}

    def _operation(self, op: str, size_bytes: int, members: Sequence[int]) -> tuple[Call, Callable[[], int]]:
        """A collective on this rank, and a check that runs it once on known numbers and counts wrong ones."""
        import torch.distributed as dist

        torch = self.torch
        group, n, me = self._groups[tuple(members)], len(members), members.index(self.place.rank)

        def wrong(found: Any, expected: Any) -> int:
            return int((found != expected).sum().item())

        if op == "all_reduce":
            x = self._zeros(size_bytes // 4, torch.float32)

            def check() -> int:
                x.fill_(me + 1.0)
                dist.all_reduce(x, group=group)
                bad = wrong(x, n * (n + 1) / 2.0)
                x.zero_()
                return bad

            return lambda: dist.all_reduce(x, group=group), check
        if op == "reduce_scatter":
            whole = self._zeros(size_bytes // 4, torch.float32)
            part = self._zeros(size_bytes // 4 // n, torch.float32)
            scatter = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor

            def check() -> int:
                whole.fill_(me + 1.0)
                scatter(part, whole, group=group)
                whole.zero_()
                return wrong(part, n * (n + 1) / 2.0)

            return lambda: scatter(part, whole, group=group), check
        if op == "all_gather":
            part = self._zeros(size_bytes // n, torch.uint8).fill_(me % 251)
            whole = self._zeros(size_bytes, torch.uint8)
            gather = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor

            def check() -> int:
                gather(whole, part, group=group)
                return wrong(whole.view(n, -1), self._numbers(n).unsqueeze(1))

            return lambda: gather(whole, part, group=group), check
        source = self._zeros(size_bytes, torch.uint8).fill_(me % 251)
        target = self._zeros(size_bytes, torch.uint8)
        if op == "all_to_all":

            def check() -> int:
                dist.all_to_all_single(target, source, group=group)
                return wrong(target.view(n, -1), self._numbers(n).unsqueeze(1))

            return lambda: dist.all_to_all_single(target, source, group=group), check
        after, before = members[(me + 1) % n], members[(me - 1) % n]

        def shift() -> None:
            ops = [  # gloo sends one way after the other where the send is posted first
                dist.P2POp(dist.irecv, target, before, group=group),
                dist.P2POp(dist.isend, source, after, group=group),
            ]
            for work in dist.batch_isend_irecv(ops):
                work.wait()

        def check_shift() -> int:
            shift()
            return wrong(target, (me - 1) % n % 251)

        return shift, check_shift

    def _numbers(self, n: int) -> Any:
        return (self.torch.arange(n, device=self.device) % 251).to(self.torch.uint8)

    def _pair(self, item: Item, calls: Calls, world: World) -> dict[str, Any]:
        """One way between two nodes: half of there and back, on the leading rank of the first."""
        import torch.distributed as dist

        inside, rank = world.ranks_per_node, self.place.rank
        pair = next((p for p in pair_rounds(world.nodes)[item.round] if rank in (p[0] * inside, p[1] * inside)), None)
        if pair is None:
            return {}
        first, second = (node * inside for node in pair)
        x = self._zeros(item.size_bytes, self.torch.uint8)

        def there_and_back() -> None:
            if rank == first:
                dist.send(x, second)
                dist.recv(x, second)
            else:
                dist.recv(x, first)
                dist.send(x, first)

        times = self._time(there_and_back, calls)
        return {"t": [t / 2.0 for t in times]} if rank == first else {}

    def _overlap(self, item: Item, calls: Calls, world: World) -> dict[str, Any]:
        """A product and a collective alone, then both at once, as often each as makes both last about as long."""
        members = self._members(item.scope, world)
        if members is None or not self.cuda:
            return {}
        cuda = self.torch.cuda
        product = self._product(item)
        collective, _ = self._operation(item.op, item.size_bytes, members)
        compute_s = sorted(self._time(product, calls))[calls.samples // 2]
        communication_s = sorted(self._time(collective, calls))[calls.samples // 2]
        some = max(calls.each, 4)
        # every rank must call the collective equally often; how many products beside it is each rank's own affair
        many = max(1, round(some * communication_s / compute_s))
        side = cuda.Stream(self.device)
        beside: list[tuple[float, float]] = []
        for _ in range(calls.samples):
            marks = [cuda.Event(enable_timing=True) for _ in range(4)]
            self._sync()
            with cuda.stream(side):
                marks[0].record()
                for _ in range(some):
                    collective()
                marks[1].record()
            marks[2].record()
            for _ in range(many):
                product()
            marks[3].record()
            self._sync()
            beside.append((_seconds(marks[2], marks[3]) / many, _seconds(marks[0], marks[1]) / some))
        return {
            "overlap": [
                compute_s,
                communication_s,
                sorted(b[0] for b in beside)[len(beside) // 2],
                sorted(b[1] for b in beside)[len(beside) // 2],
            ]
        }


def _seconds(start: Any, end: Any) -> float:
    """Between two device events, which count in milliseconds [s]."""
    return float(start.elapsed_time(end) * MILLI)


def _free_host_bytes() -> int:
    """Memory that the host can still give [bytes]."""
    with suppress(OSError, ValueError, IndexError), Path("/proc/meminfo").open(encoding="ascii") as lines:
        for line in lines:
            if line.startswith("MemAvailable:"):
                return int(int(line.split()[1]) * KIB)
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2  # a guess where the system does not say
