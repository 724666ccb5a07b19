"""When are two theories the same? Up to the order of fields and of equal groups, conjugation, and charge scales.

Fields decide, not couplings: a theory with another parameter or one more allowed term is not another theory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache, lru_cache
from itertools import permutations, product
from math import gcd
from typing import TypeVar

from coterie.worlds.theory.groups import dimension, find_rep
from coterie.worlds.theory.theory import Theory, conjugate_name, conjugated, group_name, left_handed

Line = tuple[int, tuple[str, ...], tuple[int, ...]]  # how many, representations, charges
T = TypeVar("T")
Variant = tuple[tuple[int, ...], tuple[int, ...], tuple[bool, ...], tuple[int, ...]]


@lru_cache(maxsize=4096)
def _relabelings(simple: tuple[int, ...], num_abelian: int) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(order of the SU(N)s, order of the U(1)s): equal factors may change places."""

    def keep_kinds(order: tuple[int, ...]) -> bool:
        return all(simple[i] == simple[j] for i, j in enumerate(order))

    orders = [order for order in permutations(range(len(simple))) if keep_kinds(order)]
    return [(a, b) for a in orders for b in permutations(range(num_abelian))]


def content_of(theory: Theory) -> tuple[list[Line], list[Line]]:
    """Fermions (all left-handed, equal ones added up) and scalars (those with a VEV marked by a negative count)."""
    simple = theory.simple
    fermions: Counter[tuple[tuple[str, ...], tuple[int, ...]]] = Counter()
    for f in theory.fermions:
        fermions[left_handed(f, simple)] += f.generations
    scales = [
        gcd(*(q[u] for _, q in fermions), *(s.charges[u] for s in theory.scalars)) or 1
        for u in range(theory.num_abelian)
    ]

    def scaled(charges: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(q // scale for q, scale in zip(charges, scales, strict=True))

    # A scalar may as well be called by its conjugate.
    named = [(s.reps, scaled(s.charges)) for s in theory.scalars]
    named = [min(content, conjugated(*content, simple)) for content in named]
    scalars = Counter((*content, s.vev is not None) for content, s in zip(named, theory.scalars, strict=True))
    return (
        [(count, reps, scaled(charges)) for (reps, charges), count in fermions.items()],
        [(-count if vev else count, reps, charges) for (reps, charges, vev), count in scalars.items()],
    )


def canonical_form(theory: Theory) -> str:
    """One text for all ways to write the same theory."""
    simple, abelian = theory.simple, theory.num_abelian
    groups = sorted(theory.groups, reverse=True)
    # Factors in the order of the sorted groups, so that texts with another order of groups agree.
    start = sorted(range(len(simple)), key=lambda i: -simple[i])
    ordered = tuple([simple[i] for i in start])
    fermions, scalars = (_reordered(lines, start) for lines in content_of(theory))
    best: tuple[list[Line], list[Line]] | None = None
    for variant in _variants(ordered, abelian, fermions, scalars):
        told = sorted([_told(line, ordered, *variant) for line in fermions])
        if best is None or told <= best[0]:  # scalars matter only among equals
            others = sorted(
                [min(each, _bar(each, ordered)) for each in [_told(line, ordered, *variant) for line in scalars]]
            )
            if best is None or (told, others) < best:
                best = told, others
    assert best is not None
    return " | ".join((" ".join(map(group_name, groups)), "; ".join(_say(best[0], "F")), "; ".join(_say(best[1], "S"))))


def _reordered(lines: list[Line], start: list[int]) -> list[Line]:
    return [(count, tuple([reps[i] for i in start]), charges) for count, reps, charges in lines]


def _variants(simple: tuple[int, ...], abelian: int, fermions: list[Line], scalars: list[Line]) -> Iterator[Variant]:
    """Relabelings to compare: (order, order of the U(1)s, conjugated factors, signs).

    A sum over fermions that changes sign with a factor decides which way round that factor is told; only where it
    vanishes both ways are tried.
    """
    weights = [_weight(line, simple) for line in fermions] + [0] * len(scalars)
    lines = fermions + scalars
    bars = [_ways(weights, [_orientation(n, line[1][i]) for line in lines], False, True) for i, n in enumerate(simple)]
    signs = [_ways(weights, [line[2][u] for line in lines], 1, -1) for u in range(abelian)]
    for left, right in _relabelings(simple, abelian):
        # What may be conjugated goes where its factor goes.
        for chosen in product(*[bars[i] for i in left]):
            for sign in product(*[signs[u] for u in right]):
                yield left, right, chosen, sign


def _ways(weights: list[int], values: list[int], as_told: T, otherwise: T) -> tuple[T, ...]:
    odd = sum([w * value for w, value in zip(weights, values, strict=True)])
    if odd or not any(values):
        return (otherwise,) if odd < 0 else (as_told,)
    return as_told, otherwise


def _weight(line: Line, simple: tuple[int, ...]) -> int:
    """The same under every relabeling, and seldom the same for different lines."""
    sizes = sum([size_of(n, name) ** 2 for n, name in zip(simple, line[1], strict=True)])
    return line[0] * (3 + sizes) * (1 + sum(map(abs, line[2])))


@cache
def size_of(n: int, name: str) -> int:
    return dimension(n, find_rep(n, name))


@cache
def _orientation(n: int, name: str) -> int:
    """1 or -1 for a representation and its conjugate, 0 for a real one."""
    rep = find_rep(n, name)
    return (rep > rep[::-1]) - (rep < rep[::-1])


def _told(
    line: Line,
    simple: tuple[int, ...],
    left: tuple[int, ...],
    right: tuple[int, ...],
    bars: tuple[bool, ...],
    signs: tuple[int, ...],
) -> Line:
    count, reps, charges = line
    names = [reps[i] for i in left]
    if True in bars:
        names = [conjugate_name(n, r) if bar else r for n, r, bar in zip(simple, names, bars, strict=True)]
    return count, tuple(names), tuple([sign * charges[u] for sign, u in zip(signs, right, strict=True)])


def _bar(line: Line, simple: tuple[int, ...]) -> Line:
    return line[0], *conjugated(line[1], line[2], simple)


def _say(lines: list[Line], letter: str) -> Iterator[str]:
    for count, reps, charges in lines:
        mark = f"{abs(count)}{'V' if count < 0 else letter}"
        yield f"{mark}({','.join((*reps, *map(str, charges)))})"
