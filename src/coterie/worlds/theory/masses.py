"""Masses after symmetry breaking, from the terms that exist, and which charged particles are light.

For each unbroken charge there is a mass matrix between the fermions that have it and those that have the opposite.
Its entries come from MASS terms and from YUKAWA terms whose scalar has a VEV (c v / sqrt 2), wherever the invariant
really couples the components. Generations mix by fixed orthogonal matrices, the first term of a block by none, so
that numbers of generations that differ leave no zero but those that no choice of couplings could lift.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.theory.breaking import Breaking, Component, break_symmetry
from coterie.worlds.theory.groups import dimension, find_rep
from coterie.worlds.theory.invariants import FLIP, Form, count_invariants, coupled, forms_of
from coterie.worlds.theory.theory import Term, Theory, conjugated, left_handed

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
    count: int


class Link(NamedTuple):
    """A mass between two components."""

    mass: float
    antisymmetric: bool  # in generations


def forms_of_all(theory: Theory) -> list[list[Form]]:
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


def _mass_terms(theory: Theory, forms: Forms) -> Iterator[tuple[int, int, float, tuple[Node, ...], bool]]:
    """(fermion, fermion, mass, coupled components, whether antisymmetric) of each term that gives one."""
    simple = theory.simple
    none = ("1",) * len(simple), ("",) * len(simple)
    for term, ways in zip(theory.terms, forms, strict=True):
        if term.kind not in ("MASS", "YUKAWA"):
            continue
        a, b = term.fields[0], term.fields[1]
        first, second = (left_handed(theory.fermions[i], simple)[0] for i in (a, b))
        for way in ways:
            mass, reps, directions = term.parameter, *none
            if term.kind == "YUKAWA":
                scalar = theory.scalars[term.fields[2]]
                if scalar.vev is None:
                    continue
                mass *= scalar.vev / math.sqrt(2)
                reps, directions = scalar.reps, scalar.directions
                if way[2]:
                    reps = conjugated(reps, (), simple)[0]
                    directions = tuple([FLIP.get(d, d) for d in directions])
            others = ((reps, 1, 1),) if term.kind == "YUKAWA" else ()
            antisymmetric = a == b and count_invariants(simple, ((first, 1, 2), *others)) == 0
            yield a, b, mass, _pairs(simple, first, second, reps, directions), antisymmetric


def charged_fermions(theory: Theory, forms: Forms, breaking: Breaking) -> list[Particle]:
    """Every charged fermion with its mass."""
    rows: dict[int, list[tuple[Node, Component]]] = defaultdict(list)
    columns: dict[int, list[Node]] = defaultdict(list)
    simple = theory.simple
    electric: dict[int, int] = {}
    for f, fermion in enumerate(theory.fermions):
        reps, charges = left_handed(fermion, simple)
        offset = breaking.key_of(charges)
        electric[f] = breaking.electric_of(charges)
        for component in breaking.components(reps):
            key = component.key + offset
            if key and (component.side > 0 or (component.side == 0 and key > 0)):
                rows[key].append(((f, component.place), component))
            elif key:
                columns[-key].append((f, component.place))
    links: dict[Node, dict[Node, list[Link]]] = defaultdict(lambda: defaultdict(list))
    at_row = {node for nodes in rows.values() for node, _ in nodes}
    for a, b, mass, pairs, antisymmetric in _mass_terms(theory, forms):
        for i, j in pairs:
            if (a, i) in at_row:
                links[a, i][b, j].append(Link(mass, antisymmetric))
            if a != b and (b, j) in at_row:
                links[b, j][a, i].append(Link(mass, antisymmetric))
    found = []
    for key in rows.keys() | columns.keys():
        nodes = [node for node, _ in rows[key]]
        for mass, count in _masses(theory, nodes, columns[key], links):
            if rows[key]:
                (f, _), part = rows[key][0]
                color, charge = part.color, part.electric + electric[f]
            else:
                color, charge = _opposite(breaking, theory, columns[key][0], electric)
            names = tuple(f"F{f + 1}" for f in sorted({f for f, _ in (*nodes, *columns[key])}))
            found.append(Particle(names, color, charge, mass, count))
    return found


def _opposite(
    breaking: Breaking, theory: Theory, node: Node, electric: dict[int, int]
) -> tuple[tuple[int, int], int]:
    """Color and charge of the partner that a lone column would need."""
    field, place = node
    reps, _ = left_handed(theory.fermions[field], theory.simple)
    part = next(c for c in breaking.components(reps) if c.place == place)
    return (-part.color[0], -part.color[1]), -part.electric - electric[field]


def _masses(
    theory: Theory, rows: list[Node], columns: list[Node], links: dict[Node, dict[Node, list[Link]]]
) -> list[tuple[float, int]]:
    """(mass, how many) of one charge."""
    sizes = [theory.fermions[f].generations for f, _ in rows], [theory.fermions[f].generations for f, _ in columns]
    if not rows or not columns:
        return [(0.0, sum(sizes[0]) + sum(sizes[1]))]
    if len(rows) == len(columns) == 1 and sizes[0] == sizes[1]:
        between = links[rows[0]][columns[0]]
        if len(between) < 2 and not any(link.antisymmetric for link in between):
            return [(between[0].mass if between else 0.0, sizes[0][0])]
    matrix = np.zeros((sum(sizes[0]), sum(sizes[1])))
    for r, row in enumerate(rows):
        for c, column in enumerate(columns):
            block = matrix[sum(sizes[0][:r]) : sum(sizes[0][: r + 1]), sum(sizes[1][:c]) : sum(sizes[1][: c + 1])]
            for number, link in enumerate(links[row][column]):
                block += link.mass * _texture(number + 7 * (r + c), *block.shape, link.antisymmetric)
    values = np.linalg.svd(matrix, compute_uv=False)
    lone = max(matrix.shape) - min(matrix.shape)
    return [*((float(v) if v > MASSLESS else 0.0, 1) for v in values), *([(0.0, lone)] if lone else [])]


@lru_cache(maxsize=1024)
def _texture(number: int, rows: int, columns: int, antisymmetric: bool) -> NDArray[np.float64]:
    """How generations mix: not at all, or by a fixed orthogonal matrix; or antisymmetrically."""
    size = max(rows, columns)
    mixed = np.linalg.qr(np.random.default_rng(number).normal(size=(size, size)))[0]
    if antisymmetric:
        return np.asarray((mixed - mixed.T)[:rows, :columns])
    return (mixed if number else np.eye(size))[:rows, :columns]


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


def light_exotics(theory: Theory, forms: Forms, threshold: float) -> list[Particle]:
    """Charged particles below the threshold that are not quarks or charged leptons of three families."""
    breaking = break_symmetry(theory.groups, theory.vevs, theory.unit)
    if not breaking.unbroken:
        return []
    scalars = [p for p in charged_scalars(theory, forms, breaking) if p.mass < threshold]
    fermions = [p for p in charged_fermions(theory, forms, breaking) if p.mass < threshold]
    ways = [[*_unfamiliar(fermions, breaking, sign), *scalars] for sign in (1, -1)] if fermions else [scalars]
    return min(ways, key=len)


def _unfamiliar(light: list[Particle], breaking: Breaking, sign: int) -> Iterator[Particle]:
    met: dict[tuple[tuple[int, int], int], int] = defaultdict(int)
    for particle in sorted(light, key=lambda p: -p.mass):
        known = particle.mass > 0 and breaking.familiar(particle.color, particle.electric, sign)
        room = max(0, FAMILIES - met[particle.color, abs(particle.electric)]) if known else 0
        met[particle.color, abs(particle.electric)] += min(room, particle.count)
        if particle.count > room:
            yield particle._replace(count=particle.count - room)
