"""All anomalies of a theory, in integers.

Every field counts as left-handed (a right-handed one as its conjugate), weighted by its generations and its
dimension under the other groups. References: Weinberg, The Quantum Theory of Fields II, chapter 22; Witten,
Phys. Lett. B 117 (1982) 324.
"""

from __future__ import annotations

from collections.abc import Iterator
from fractions import Fraction
from functools import cache, lru_cache
from itertools import combinations_with_replacement
from math import gcd, prod
from typing import NamedTuple

from coterie.worlds.theory.groups import cubic_anomaly, dimension, find_rep, twice_index
from coterie.worlds.theory.theory import Fermion, Theory, group_name, simple_factors


class Anomaly(NamedTuple):
    """One sum over fermions: numerators over a common denominator."""

    name: str  # SU3^3, SU3^2 U1, U1^3, grav^2 U1, witten SU2
    terms: tuple[int, ...]  # one a fermion
    denominator: int
    modulus: int = 0  # 2 for Witten's, which counts only whether the sum is even
    unit: int = 1  # what every numerator is a multiple of because all charges are

    @property
    def total(self) -> int:
        """The numerator: zero if and only if the anomaly is."""
        return sum(self.terms) % self.modulus if self.modulus else sum(self.terms)

    @property
    def value(self) -> Fraction:
        return Fraction(self.total, self.denominator)


@cache
def _numbers(n: int, name: str) -> tuple[int, int, int]:
    rep = find_rep(n, name)
    return dimension(n, rep), twice_index(n, rep), cubic_anomaly(n, rep)


@lru_cache(maxsize=65_536)
def _counts(simple: tuple[int, ...], reps: tuple[str, ...]) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """The dimension; for each SU(N) 2T and A times the dimension under the others."""
    numbers = [_numbers(n, name) for n, name in zip(simple, reps, strict=True)]
    size = prod(d for d, _, _ in numbers)
    return size, tuple(t * size // d for d, t, _ in numbers), tuple(a * size // d for d, _, a in numbers)


def anomalies_of(theory: Theory) -> list[Anomaly]:
    """Every anomaly that the gauge groups can have, whether or not it is zero."""
    return list(_anomalies(theory.groups, theory.fermions, theory.unit))


def factor_names(groups: tuple[int, ...]) -> list[str]:
    """SU3, SU2, U1; equal ones are numbered: U1_1, U1_2."""
    names, seen = [], dict.fromkeys(groups, 0)
    for n in groups:
        seen[n] += 1
        names.append(group_name(n) if groups.count(n) == 1 else f"{group_name(n)}_{seen[n]}")
    return names


@lru_cache(maxsize=1024)
def _names(groups: tuple[int, ...]) -> tuple[list[str], list[str], list[tuple[str, tuple[int, int, int]]]]:
    """Names of the simple factors, of the abelian ones, and of the products of three of these."""
    named = list(zip(groups, factor_names(groups), strict=True))
    simple, abelian = [name for n, name in named if n > 1], [name for n, name in named if n == 1]
    triples = []
    for i, j, k in combinations_with_replacement(range(len(abelian)), 3):
        factors = [abelian[i], abelian[j], abelian[k]]
        powers = (f"{name}^{c}" if (c := factors.count(name)) > 1 else name for name in dict.fromkeys(factors))
        triples.append((" ".join(powers), (i, j, k)))
    return simple, abelian, triples


def _anomalies(groups: tuple[int, ...], fermions: tuple[Fermion, ...], unit: int) -> Iterator[Anomaly]:
    simple = simple_factors(groups)
    names, abelian, triples = _names(groups)
    counted = [_counts(simple, f.reps) for f in fermions]
    # A right-handed field has the opposite sign in every sum but Witten's.
    signs = [f.generations if f.left else -f.generations for f in fermions]
    charges = [f.charges for f in fermions]
    units = [gcd(*[q[u] for q in charges]) or 1 for u in range(len(abelian))]
    for i, (n, name) in enumerate(zip(simple, names, strict=True)):
        if n > 2:
            yield Anomaly(f"{name}^3", tuple([s * c[2][i] for s, c in zip(signs, counted, strict=True)]), 1)
        else:
            doublets = tuple([f.generations * c[1][i] for f, c in zip(fermions, counted, strict=True)])
            yield Anomaly(f"witten {name}", doublets, 1, 2)
        indices = [s * c[1][i] for s, c in zip(signs, counted, strict=True)]
        for u, other in enumerate(abelian):
            terms = tuple([t * q[u] for t, q in zip(indices, charges, strict=True)])
            yield Anomaly(f"{name}^2 {other}", terms, 2 * unit, 0, units[u])
    sizes = [s * c[0] for s, c in zip(signs, counted, strict=True)]
    for name, (i, j, k) in triples:
        terms = tuple([d * q[i] * q[j] * q[k] for d, q in zip(sizes, charges, strict=True)])
        yield Anomaly(name, terms, unit**3, 0, units[i] * units[j] * units[k])
    for u, other in enumerate(abelian):
        terms = tuple([d * q[u] for d, q in zip(sizes, charges, strict=True)])
        yield Anomaly(f"grav^2 {other}", terms, unit, 0, units[u])
