"""When are two theories the same? Up to the order of fields and of equal groups, conjugation, and charge scales.

Fields decide, not couplings: a theory with another parameter or one more allowed term is not another theory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import lru_cache
from itertools import permutations, product
from math import gcd

from coterie.worlds.theory.theory import Theory, conjugate_name, conjugated, group_name, left_handed

Line = tuple[int, tuple[str, ...], tuple[int, ...]]  # how many, representations, charges


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
    fermions, scalars = content_of(theory)
    ordered = tuple(simple[i] for i in start)
    best: tuple[list[Line], list[Line]] | None = None
    for (left, right), bars, signs in product(
        _relabelings(ordered, abelian),
        product(*((False, True) if n > 2 else (False,) for n in ordered)),
        product(*((1, -1),) * abelian),
    ):

        def told(line: Line, left=left, right=right, bars=bars, signs=signs) -> Line:  # type: ignore[no-untyped-def]
            count, reps, charges = line
            names = tuple(
                [
                    conjugate_name(n, reps[start[i]]) if bar else reps[start[i]]
                    for n, i, bar in zip(ordered, left, bars, strict=True)
                ]
            )
            return count, names, tuple([sign * charges[i] for sign, i in zip(signs, right, strict=True)])

        variant = (
            sorted(map(told, fermions)),
            sorted(min(line, _bar(line, ordered)) for line in map(told, scalars)),
        )
        if best is None or variant < best:
            best = variant
    assert best is not None
    return " | ".join((" ".join(map(group_name, groups)), "; ".join(_say(best[0], "F")), "; ".join(_say(best[1], "S"))))


def _bar(line: Line, simple: tuple[int, ...]) -> Line:
    return line[0], *conjugated(line[1], line[2], simple)


def _say(lines: list[Line], letter: str) -> Iterator[str]:
    for count, reps, charges in lines:
        mark = f"{abs(count)}{'V' if count < 0 else letter}"
        yield f"{mark}({','.join((*reps, *map(str, charges)))})"
