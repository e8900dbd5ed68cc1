"""Where a group of ranks lies: members inside one domain of a tier, domains crossed, alignment."""

from __future__ import annotations

import numpy as np

from dscalc.frozen import dataclass
from dscalc.records import Array, Mask


@dataclass(frozen=True, slots=True)
class Place:
    """A group on domains of one size; arrays (n,)."""

    inside: Array  # members of the worst-placed group inside one domain
    domains: Array  # domains that the group crosses
    misaligned: Mask  # groups straddle domains unevenly


def place(group: Array, stride: Array, domain: Array) -> Place:
    """Members inside a domain and domains crossed, for the worst-placed group of its kind.

    Ranks r, r + q, ..., r + (k-1) q form a group; consecutive ranks fill domains of W. n_in = min(k, max(1,
    floor(gcd(W, q k) / q))); one domain is crossed where q k divides W, else ceil(k / n_in). Groups are aligned where W
    divides q k or q k divides W.

    Args:
        group [ranks, (n,)]: members k.
        stride [ranks, (n,)]: distance q between neighbours.
        domain [GPUs, (n,)]: size W of a domain; inf: everything lies in one.

    Returns:
        The place of the group [ranks, (n,)].

    Raises:
        nothing.

    References:
        [Narayanan2021] section 3.2; derived by counting, checked against enumeration in the tests.
    """
    span = group * stride
    unbounded = ~np.isfinite(domain)
    width = np.where(unbounded, 1.0, domain)
    rest = np.fmod(span, width)  # gcd(W, qk) = gcd(W, qk mod W), which no product of degrees overflows
    shared = np.gcd(width.astype(np.int64), rest.astype(np.int64)).astype(np.float64)
    inside = np.minimum(group, np.maximum(1.0, np.floor(shared / stride)))
    whole = unbounded | (np.floor(width / span) * span == width)
    inside = np.where(whole, group, inside)
    domains = np.where(whole, 1.0, np.ceil(group / inside))
    aligned = whole | (rest == 0.0)
    return Place(inside, domains, np.asarray(~aligned & (group > 1.0)))


def place_in_blocks(group: Array, stride: Array, near: Array, far: Array, domain: Array) -> Place:
    """The same for a group in blocks: ``near`` members q apart, and the first members of blocks Q apart.

    A block is placed as a group of its own, and so are the blocks: members inside a domain, and domains crossed, are
    the products.

    Args:
        group [ranks, (n,)]: members k.
        stride [ranks, (n,)]: distance q between neighbours in a block.
        near [ranks, (n,)]: members of a block; at least the group where there is one block.
        far [ranks, (n,)]: distance Q between blocks.
        domain [GPUs, (n,)]: size W of a domain; inf: everything lies in one.

    Returns:
        The place of the group [ranks, (n,)].

    Raises:
        nothing.

    References:
        [MegatronLM] parallel_state.py, RankGenerator; derived by counting, checked against enumeration in the tests.
    """
    block = np.minimum(near, group)
    inner, outer = place(block, stride, domain), place(group / block, far, domain)
    return Place(inner.inside * outer.inside, inner.domains * outer.domains, inner.misaligned | outer.misaligned)
