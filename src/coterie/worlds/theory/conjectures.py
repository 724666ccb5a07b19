"""Theories to start from: random ones, and known ones with changes. Most of them are wrong."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from coterie.worlds.theory.groups import REPS, dimension
from coterie.worlds.theory.invariants import forms_of
from coterie.worlds.theory.known import known_theories
from coterie.worlds.theory.language import MAX_FERMIONS, MAX_SCALARS, PARAMETERS
from coterie.worlds.theory.theory import (
    TERMS,
    UNIT,
    Fermion,
    Scalar,
    Term,
    Theory,
    conjugated,
    directions_of,
    simple_factors,
)

INVARIANT_SHARE = 0.8  # of random terms that are tried again until they are gauge invariant
TRIES = 12
HEAVY = 1e3  # GeV, of what is added to a known theory


class Dice(NamedTuple):
    """A random generator and the groups it draws for."""

    rng: np.random.Generator
    groups: tuple[int, ...]

    @property
    def simple(self) -> tuple[int, ...]:
        return simple_factors(self.groups)

    def value(self, letter: str, least: float = 0.0) -> float:
        return float(self.rng.choice([x for x in PARAMETERS[letter] if x >= least]))

    def reps(self) -> tuple[str, ...]:
        """Singlets half the time, else the likelier the smaller."""
        found = []
        for n in self.simple:
            names = list(REPS[n])
            chance = np.array([1.0 if name == "1" else 1.5 / dimension(n, REPS[n][name]) for name in names])
            found.append(str(self.rng.choice(names, p=chance / chance.sum())))
        return tuple(found)

    def charges(self) -> tuple[int, ...]:
        """Small ones are likelier."""
        size = self.groups.count(1)
        return tuple(np.clip(np.rint(self.rng.normal(0, 4, size)), -3 * UNIT, 3 * UNIT).astype(int).tolist())


def dream(groups: tuple[int, ...], rng: np.random.Generator) -> Theory:
    """A random theory: scalars, fermions (some in vector-like pairs), and terms that mostly make sense."""
    dice = Dice(rng, groups)
    scalars = [_scalar(dice, True) for _ in range(rng.integers(0, 3))]
    scalars += [_scalar(dice, False) for _ in range(rng.integers(0, 2))]
    fermions: list[Fermion] = []
    for _ in range(rng.integers(1, 6)):
        fermion = Fermion(bool(rng.random() < 0.6), int(rng.integers(1, 4)), dice.reps(), dice.charges())
        fermions.append(fermion)
        if rng.random() < 0.5:
            fermions.append(_partner(dice, fermion))
    theory = Theory(groups, tuple(scalars), tuple(fermions[:MAX_FERMIONS]), ())
    return theory._replace(terms=tuple(_terms(dice, theory, int(rng.integers(0, 6)))))


def _scalar(dice: Dice, vacuum: bool) -> Scalar:
    reps, charges = dice.reps(), dice.charges()
    if not vacuum:
        return Scalar(reps, charges)
    ways = (str(dice.rng.choice(directions_of(n, name))) for n, name in zip(dice.simple, reps, strict=True))
    return Scalar(reps, charges, dice.value("v"), tuple(ways))


def _partner(dice: Dice, fermion: Fermion) -> Fermion:
    """The fermion that cancels every anomaly of this one, written either way."""
    if dice.rng.random() < 0.5:
        return fermion._replace(left=not fermion.left)
    reps, charges = conjugated(fermion.reps, fermion.charges, dice.simple)
    return fermion._replace(reps=reps, charges=charges)


def _terms(dice: Dice, theory: Theory, count: int) -> list[Term]:
    """A mass and a potential for most scalars, then random terms."""
    terms = []
    for i in range(len(theory.scalars)):
        if dice.rng.random() < 0.7:
            terms.append(Term("PHI2", (i, i), dice.value("m")))
        if dice.rng.random() < 0.5:
            terms.append(Term("PHI4", (i,) * 4, dice.value("c")))
    have = {"S": len(theory.scalars), "F": len(theory.fermions)}
    kinds = [kind for kind, (fields, _) in TERMS.items() if all(have[f] for f in fields)]
    for _ in range(count if kinds else 0):
        sensible = dice.rng.random() < INVARIANT_SHARE
        for _ in range(TRIES):
            kind = str(dice.rng.choice(kinds))
            fields = tuple(int(dice.rng.integers(have[f])) for f in TERMS[kind][0])
            term = Term(kind, fields, dice.value(TERMS[kind][1]))
            if not sensible or forms_of(theory, term):
                terms.append(term)
                break
    return terms


def vary(theory: Theory, rng: np.random.Generator) -> Theory:
    """The same told otherwise: fields shuffled and conjugated, other generations, a heavy pair or scalar added."""
    dice = Dice(rng, theory.groups)
    order = rng.permutation(len(theory.fermions)).tolist()
    fermions = [_retold(dice, theory.fermions[i]) for i in order]
    if len({f.generations for f in fermions}) == 1:
        generations = int(rng.integers(1, 4))
        fermions = [f._replace(generations=generations) for f in fermions]
    places = {old: new for new, old in enumerate(order)}
    terms = [
        term._replace(
            fields=tuple(
                places[f] if kind == "F" else f for kind, f in zip(TERMS[term.kind][0], term.fields, strict=True)
            )
        )
        for term in theory.terms
    ]
    scalars = list(theory.scalars)
    if rng.random() < 0.3 and len(fermions) + 2 <= MAX_FERMIONS:
        first = Fermion(True, 1, dice.reps(), dice.charges())
        terms.append(Term("MASS", (len(fermions), len(fermions) + 1), dice.value("m", HEAVY)))
        fermions += [first, _partner(dice, first)]
    if rng.random() < 0.3 and len(scalars) < MAX_SCALARS:
        terms.append(Term("PHI2", (len(scalars),) * 2, dice.value("m", HEAVY)))
        scalars.append(_scalar(dice, False))
    return theory._replace(scalars=tuple(scalars), fermions=tuple(fermions), terms=tuple(terms))


def _retold(dice: Dice, fermion: Fermion) -> Fermion:
    """A left-handed field is a right-handed one with conjugate charges."""
    if dice.rng.random() < 0.8:
        return fermion
    reps, charges = conjugated(fermion.reps, fermion.charges, dice.simple)
    return Fermion(not fermion.left, fermion.generations, reps, charges)


def extend(theory: Theory, groups: tuple[int, ...]) -> Theory | None:
    """The same theory among further groups, under which nothing is charged; None if its own are not all there."""
    left, places = list(groups), []
    for n in theory.groups:
        if n not in left:
            return None
        places.append(left.index(n))
        left[places[-1]] = 0

    def spread(own: Sequence[str], inner: bool) -> tuple[str, ...]:
        """Names or directions of the old SU(N)s at their new places."""
        words = iter(own)
        found = {place: next(words) for n, place in zip(theory.groups, places, strict=True) if n > 1}
        return tuple(found.get(i, "1" if inner else "") for i, n in enumerate(groups) if n > 1)

    def charged(own: tuple[int, ...]) -> tuple[int, ...]:
        numbers = iter(own)
        found = {place: next(numbers) for n, place in zip(theory.groups, places, strict=True) if n == 1}
        return tuple(found.get(i, 0) for i, n in enumerate(groups) if n == 1)

    return theory._replace(
        groups=groups,
        scalars=tuple(
            Scalar(spread(s.reps, True), charged(s.charges), s.vev, spread(s.directions, False) if s.directions else ())
            for s in theory.scalars
        ),
        fermions=tuple(f._replace(reps=spread(f.reps, True), charges=charged(f.charges)) for f in theory.fermions),
    )


def conjecture(products: Sequence[tuple[int, ...]], known_share: float, rng: np.random.Generator) -> Theory:
    """A theory to imitate: a random one of these products of groups, or now and then a known one among such groups."""
    if rng.random() < known_share:
        known = list(known_theories().values())[int(rng.integers(len(known_theories())))]
        groups = known.groups if rng.random() < 0.5 else products[int(rng.integers(len(products)))]
        if extended := extend(known, groups):
            return vary(extended, rng)
    return dream(products[int(rng.integers(len(products)))], rng)
