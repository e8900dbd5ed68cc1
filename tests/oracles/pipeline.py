"""Pipeline schedules played stage by stage: each stage has its written order, an operation waits for what it needs.

Written from the papers' descriptions; counts what is alive instead of using a closed form.
"""

from __future__ import annotations

from collections.abc import Iterable

# (kind, micro-batch, chunk of the stage); F forward, B backward (input gradient where W is apart), W weight gradient.
Op = tuple[str, int, int]


def one_f_one_b(p: int, m: int, stage: int) -> list[Op]:
    """Narayanan et al. 2021, section 2.2: a warm-up of p - 1 - stage forwards, then one forward and one backward in
    turn.
    """
    warm_up = min(m, p - 1 - stage)
    order: list[Op] = [("F", k, 0) for k in range(warm_up)]
    for k in range(warm_up, m):
        order += [("F", k, 0), ("B", k - warm_up, 0)]
    return order + [("B", k, 0) for k in range(m - warm_up, m)]


def gpipe(p: int, m: int, stage: int) -> list[Op]:
    """Huang et al. 2019: every forward, then every backward, the last micro-batch first."""
    return [("F", k, 0) for k in range(m)] + [("B", k, 0) for k in reversed(range(m))]


def interleaved(p: int, m: int, v: int, stage: int) -> list[Op]:
    """Narayanan et al. 2021, section 2.2, in Megatron's order: p micro-batches through one chunk, then through the
    next.

    The warm-up is 2 (p - 1 - stage) + (v - 1) p forwards, so that the first backward of the last chunk finds its
    gradient. Where p does not divide m, micro-batches go in floor(m / p) equal groups, one at least, as in PyTorch's
    ``ScheduleInterleaved1F1B``.
    """
    group, rest = divmod(m, max(m // p, 1))
    assert rest == 0, "groups differ in size"

    def forward(k: int) -> Op:
        round_, place = divmod(k, group * v)
        return ("F", round_ * group + place % group, place // group)

    def backward(k: int) -> Op:
        round_, place = divmod(k, group * v)
        return ("B", round_ * group + place % group, v - 1 - place // group)

    total = m * v
    warm_up = min(total, 2 * (p - 1 - stage) + (v - 1) * group)
    order = [forward(k) for k in range(warm_up)]
    for k in range(warm_up, total):
        order += [forward(k), backward(k - warm_up)]
    return order + [backward(k) for k in range(total - warm_up, total)]


def zero_bubble(p: int, m: int, stage: int, second: bool) -> list[Op]:
    """Qi et al. 2023, sections 2.2 (H1) and 2.3 (H2): B and W apart.

    H1 warms up with p - stage forwards as 1F1B does, H2 with 2 (p - stage) - 1; later stages put off their weight
    gradients until they hold as many micro-batches as the first stage does.
    """
    warm_up = min(m, 2 * (p - stage) - 1 if second else p - stage)
    put_off = 2 * stage if second else stage
    order: list[Op] = [("F", k, 0) for k in range(warm_up)]
    forward, weight = warm_up, 0
    for k in range(m):
        order.append(("B", k, 0))
        if k >= put_off:
            order.append(("W", weight, 0))
            weight += 1
        if forward < m:
            order.append(("F", forward, 0))
            forward += 1
    return order + [("W", k, 0) for k in range(weight, m)]


def alive(orders: list[list[Op]], v: int = 1, release: str = "B") -> list[int]:
    """Play the orders to their end and return, for each stage, the most micro-batch chunks it held at once.

    Chunk c of stage i is model chunk c * p + i. A forward needs the previous chunk's forward of the same
    micro-batch, a backward the next chunk's backward; the last chunk's backward needs its own forward. A chunk is
    held from its forward to ``release``.

    Raises:
        AssertionError: the orders wait for each other for ever.
    """
    p = len(orders)
    done: set[tuple[str, int, int]] = set()
    position, held, most = [0] * p, [0] * p, [0] * p
    progress = True
    while progress:
        progress = False
        for stage, order in enumerate(orders):
            while position[stage] < len(order):
                kind, k, chunk = order[position[stage]]
                place = chunk * p + stage
                if not all(need in done for need in _needs(kind, k, place, p * v)):
                    break
                done.add((kind, k, place))
                position[stage] += 1
                progress = True
                if kind == "F":
                    held[stage] += 1
                    most[stage] = max(most[stage], held[stage])
                elif kind == release:
                    held[stage] -= 1
    assert [len(order) for order in orders] == position, "the schedule waits for itself"
    assert held == [0] * p, "something is never released"
    return most


def _needs(kind: str, k: int, place: int, places: int) -> Iterable[tuple[str, int, int]]:
    if kind == "W":
        yield ("B", k, place)
    elif kind == "F":
        if place > 0:
            yield ("F", k, place - 1)
    else:
        yield ("F", k, place)
        if place < places - 1:
            yield ("B", k, place + 1)
