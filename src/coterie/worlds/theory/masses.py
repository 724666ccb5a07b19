"""Masses after symmetry breaking, from the terms that exist, and which charged particles are light.

For each unbroken charge there is a mass matrix between the fermions that have it and those that have the opposite.
Its entries come from MASS terms and from YUKAWA terms whose scalar has a VEV (c v / sqrt 2), wherever the invariant
really couples the components. Generations mix by fixed orthogonal matrices, the first term of a block by none, so
that numbers of generations that differ leave no zero but those that no choice of couplings could lift.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.theory.breaking import Breaking, Component, break_symmetry
from coterie.worlds.theory.groups import dimension, find_rep
from coterie.worlds.theory.invariants import FLIP, Form, count_invariants, coupled, forms_of
from coterie.worlds.theory.theory import Scalar, Term, Theory, conjugated, left_handed, without_idle_groups

MASSLESS = 1e-9  # GeV; far below any product of parameters that can be written
FAMILIES = 3  # a fourth light electron would be exotic

Node = tuple[int, int]  # fermion, component
Forms = Sequence[Sequence[Form]]  # for each term its gauge-invariant forms


class Particle(NamedTuple):
    """Charged particles of one kind: a singular value of a mass matrix, or a scalar multiplet."""

    fields: tuple[str, ...]  # F1, S2
    color: tuple[int, int]
    electric: int  # in units of 1 / the breaking's unit
    mass: float  # GeV
    number: int


class Link(NamedTuple):
    """A mass between two components."""

    mass: float
    antisymmetric: bool  # in generations


Links = defaultdict[Node, defaultdict[Node, list[Link]]]


def forms_of_all(theory: Theory) -> list[tuple[Form, ...]]:
    return [forms_of(theory, term) for term in theory.terms]


@lru_cache(maxsize=65_536)
def _pairs(
    simple: tuple[int, ...],
    a: tuple[str, ...],
    b: tuple[str, ...],
    scalar: tuple[str, ...],
    ways: tuple[str, ...],
) -> tuple[Node, ...]:
    """Components of a and b that are coupled in every factor."""
    pairs = [(0, 0)]
    for n, x, y, s, way in zip(simple, a, b, scalar, ways, strict=True):
        sizes = dimension(n, find_rep(n, x)), dimension(n, find_rep(n, y))
        inner = coupled(n, x, y, s, way)
        pairs = [(i * sizes[0] + k, j * sizes[1] + m) for (i, j), (k, m) in product(pairs, inner)]
    return tuple(pairs)


def _mass_terms(theory: Theory, forms: Forms) -> Iterator[tuple[int, int, float, Collection[Node], bool]]:
    """(fermion, fermion, mass, coupled components, whether antisymmetric) of each term that gives one."""
    simple = theory.simple
    for term, ways in zip(theory.terms, forms, strict=True):
        if not ways or term.kind not in ("MASS", "YUKAWA"):
            continue
        a, b = term.fields[0], term.fields[1]
        first, second = (left_handed(theory.fermions[i], simple)[0] for i in (a, b))
        if term.kind == "MASS":
            reps = ("1",) * len(simple)
            mass, pairs = term.parameter, _pairs(simple, first, second, reps, ("",) * len(simple))
        else:
            scalar = theory.scalars[term.fields[2]]
            if scalar.vev is None:
                continue
            reps, mass = scalar.reps, term.parameter * scalar.vev / math.sqrt(2)
            found = [_pairs(simple, first, second, *_vacuum(scalar, simple, way[2])) for way in ways]
            # A real VEV looks the same to a scalar and its conjugate: what both couple is coupled once.
            pairs = found[0] if len(found) == 1 else tuple(dict.fromkeys(pair for each in found for pair in each))
        others = ((reps, 1, 1),) if term.kind == "YUKAWA" else ()
        antisymmetric = a == b and count_invariants(simple, tuple(sorted(((first, 1, 2), *others)))) == 0
        yield a, b, mass, pairs, antisymmetric


def _vacuum(scalar: Scalar, simple: tuple[int, ...], bar: bool) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Representations and directions of a scalar's VEV, or of its conjugate's."""
    if not bar:
        return scalar.reps, scalar.directions
    return conjugated(scalar.reps, (), simple)[0], tuple([FLIP.get(d, d) for d in scalar.directions])


class Sides(NamedTuple):
    """The components that have a charge, and those that have the opposite one."""

    rows: list[tuple[Node, Component]]
    columns: list[tuple[Node, Component]]

    def lone(self, theory: Theory) -> int:
        """How many of one side must stay without a partner."""
        rows = sum([theory.fermions[f].generations for (f, _), _ in self.rows])
        return abs(rows - sum([theory.fermions[f].generations for (f, _), _ in self.columns]))

    def describe(self, theory: Theory, breaking: Breaking) -> tuple[tuple[str, ...], tuple[int, int], int]:
        """The fields, the color and the electric charge of the rows."""
        (f, _), part = (self.rows or self.columns)[0]
        sign = 1 if self.rows else -1
        charge = part.electric + breaking.electric_of(left_handed(theory.fermions[f], theory.simple)[1])
        fields = sorted({f for (f, _), _ in (*self.rows, *self.columns)})
        color = sign * part.color[0], sign * part.color[1]
        return tuple([f"F{f + 1}" for f in fields]), color, sign * charge


def _sort_charges(theory: Theory, breaking: Breaking) -> dict[int, Sides]:
    """Charged components by the key of their charge."""
    found: dict[int, Sides] = {}
    for f, fermion in enumerate(theory.fermions):
        reps, charges = left_handed(fermion, theory.simple)
        offset = breaking.key_of(charges)
        for component in breaking.components(reps):
            key = component.key + offset
            if key:
                is_row = component.side > 0 or (component.side == 0 and key > 0)
                sides = found.setdefault(key if is_row else -key, Sides([], []))
                sides[not is_row].append(((f, component.place), component))
    return found


def charged_fermions(theory: Theory, forms: Forms, breaking: Breaking, enough: int | None = None) -> list[Particle]:
    """Every charged fermion with its mass; or only those without a partner, if there are `enough` of them."""
    charges = _sort_charges(theory, breaking)
    found, alone = [], 0
    for sides in charges.values():
        if lone := sides.lone(theory):
            found.append(Particle(*sides.describe(theory, breaking), 0.0, lone))
            alone += lone
            if enough is not None and alone >= enough:
                return found
    links: Links = defaultdict(lambda: defaultdict(list))
    at_row = {node for sides in charges.values() for node, _ in sides.rows}
    for a, b, mass, pairs, antisymmetric in _mass_terms(theory, forms):
        for i, j in pairs:
            if (a, i) in at_row:
                links[a, i][b, j].append(Link(mass, antisymmetric))
            if a != b and (b, j) in at_row:
                links[b, j][a, i].append(Link(mass, antisymmetric))
    for sides in charges.values():
        for mass, count in _masses(theory, sides, links):
            found.append(Particle(*sides.describe(theory, breaking), mass, count))
    return found


def _masses(theory: Theory, sides: Sides, links: Links) -> list[tuple[float, int]]:
    """(mass, how many) of one charge, without those that have no partner."""
    rows, columns = [node for node, _ in sides.rows], [node for node, _ in sides.columns]
    sizes = [theory.fermions[f].generations for f, _ in rows], [theory.fermions[f].generations for f, _ in columns]
    pairs = min(sum(sizes[0]), sum(sizes[1]))
    if not pairs or not any(node in links for node in rows):
        return [(0.0, pairs)] if pairs else []
    if len(rows) == len(columns) == 1:
        between = links[rows[0]][columns[0]]
        if len(between) == 1 and not between[0].antisymmetric:
            return [(between[0].mass, pairs)]
    matrix = np.zeros((sum(sizes[0]), sum(sizes[1])))
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            block = matrix[sum(sizes[0][:r]) : sum(sizes[0][: r + 1]), sum(sizes[1][:c]) : sum(sizes[1][: c + 1])]
            for number, link in enumerate(links[row][column]):
                block += link.mass * _texture(number + 7 * (r + c), *block.shape, link.antisymmetric)
    values = np.linalg.svd(matrix, compute_uv=False)
    return [(float(v) if v > MASSLESS else 0.0, 1) for v in values]


@lru_cache(maxsize=1024)
def _texture(number: int, rows: int, columns: int, antisymmetric: bool) -> NDArray[np.float64]:
    """How generations mix: not at all, or by a fixed orthogonal matrix; or antisymmetrically."""
    size = max(rows, columns)
    noise = np.random.default_rng(number).normal(size=(size, size))
    if antisymmetric:
        odd = noise - noise.T
        return np.asarray(odd / (np.linalg.norm(odd, 2) or 1.0))[:rows, :columns]
    return np.asarray(np.linalg.qr(noise)[0] if number else np.eye(size))[:rows, :columns]


def charged_scalars(theory: Theory, forms: Forms, breaking: Breaking) -> list[Particle]:
    """Scalar multiplets with a charged component, and the mass that their own terms give them."""
    squares = [0.0] * len(theory.scalars)
    for term, ways in zip(theory.terms, forms, strict=True):
        if term.kind.startswith("PHI") and ways:
            for i in set(term.fields):
                squares[i] += _square(theory, term, i)
    found = []
    for i, scalar in enumerate(theory.scalars):
        offset = breaking.key_of(scalar.charges)
        charged = [c for c in breaking.components(scalar.reps) if c.key + offset]
        if charged:
            charge = charged[0].electric + breaking.electric_of(scalar.charges)
            found.append(Particle((f"S{i + 1}",), charged[0].color, charge, math.sqrt(squares[i]), 1))
    return found


def _square(theory: Theory, term: Term, field: int) -> float:
    """What a term adds to the squared mass of this scalar: two of its fields are it, the others have their VEVs."""
    others = list(term.fields)
    for _ in range(2):
        if field not in others:
            return 0.0
        others.remove(field)
    vevs = math.prod(theory.scalars[i].vev or 0.0 for i in others)
    return term.parameter ** (2 if term.kind == "PHI2" else 1) * vevs


def light_exotics(theory: Theory, forms: Forms, threshold: float, enough: int | None = None) -> list[Particle]:
    """Charged particles below the threshold that are not quarks or charged leptons of three families.

    With `enough` fermions that can have no mass at all, the others are not looked for.
    """
    theory = without_idle_groups(theory)
    breaking = break_symmetry(theory.groups, theory.vevs, theory.unit)
    if not breaking.unbroken:
        return []
    light = [p for p in charged_fermions(theory, forms, breaking, enough) if p.mass < threshold]
    found = [p for p in light if not p.mass]
    massive = sorted((p for p in light if p.mass), key=lambda p: -p.mass)
    if massive:
        one, other = (_unfamiliar(massive, breaking, sign) for sign in (1, -1))
        found += one if len(one) <= len(other) else other
    return found + [p for p in charged_scalars(theory, forms, breaking) if p.mass < threshold]


def _unfamiliar(light: list[Particle], breaking: Breaking, sign: int) -> list[Particle]:
    met: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
    found = []
    for particle in light:
        room = 0
        if breaking.familiar(particle.color, particle.electric, sign):
            kind = particle.color, abs(particle.electric)
            room = max(0, FAMILIES - met[kind])
            met[kind] += particle.number
        if particle.number > room:
            found.append(particle._replace(number=particle.number - room))
    return found
