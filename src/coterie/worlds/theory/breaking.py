"""What vacuum values leave unbroken: charges, roots, color and electric charge.

Every VEV is a weight vector, so what leaves it alone is spanned by diagonal generators and root vectors. A
component is neutral if its weight is a combination of the VEVs' weights. Light charged particles are familiar
only where the unbroken group is (part of) SU(3) x U(1), as quarks and charged leptons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import combinations, pairwise
from math import gcd, lcm
from typing import NamedTuple

from coterie.worlds.theory.groups import Weight, conjugate, find_rep, raising
from coterie.worlds.theory.theory import Scalar

Row = tuple[int, ...]


class Component(NamedTuple):
    """A component of a multiplet whose charges are extreme in its unbroken multiplet, so that it stands for it."""

    place: int
    side: int  # of a mass matrix: 1 row, -1 column, 0 where the sign of its key decides
    key: int  # of its unbroken charges: 0 if and only if it is neutral; opposite charges have opposite keys
    color: tuple[int, int]  # Dynkin labels
    electric: int  # in units of 1 / Breaking.electric_unit; the part from SU(N)s


@lru_cache(maxsize=16_384)
def break_symmetry(groups: tuple[int, ...], vevs: tuple[Scalar, ...], unit: int) -> Breaking:
    return Breaking(groups, vevs, unit)


@dataclass(frozen=True, eq=False)
class Breaking:
    """The gauge groups after these scalars took their vacuum values."""

    groups: tuple[int, ...]
    vevs: tuple[Scalar, ...]
    unit: int  # of the charges of U(1)s

    @cached_property
    def simple(self) -> tuple[int, ...]:
        return tuple(n for n in self.groups if n > 1)

    @cached_property
    def rank(self) -> int:
        return sum(n - 1 for n in self.simple) + self.groups.count(1)

    @cached_property
    def unbroken(self) -> list[Row]:
        """Diagonal generators that annihilate every VEV, as functions of a weight and the U(1) charges."""
        return null_space([self._vev_weight(scalar) for scalar in self.vevs], self.rank)

    def _vev_weight(self, scalar: Scalar) -> Row:
        weight: list[int] = []
        for n, name, way in zip(self.simple, scalar.reps, scalar.directions, strict=True):
            top = find_rep(n, name)
            labels = {"high": top, "low": tuple(-x for x in conjugate(top))}
            weight += labels.get(way, (0,) * (n - 1))
        return (*weight, *scalar.charges)

    @cached_property
    def blocks(self) -> list[tuple[int, list[int]]]:
        """(factor, its e_i's) that unbroken roots still join, two or more: each an SU of that size."""
        found = []
        for factor, n in enumerate(self.simple):
            left = list(range(n))
            while left:
                block = [left[0], *(j for j in left[1:] if self._keeps(factor, left[0], j))]
                left = [i for i in left if i not in block]
                if len(block) > 1:
                    found.append((factor, block))
        return found

    def blocks_of(self, factor: int) -> tuple[tuple[int, ...], ...]:
        return tuple(tuple(block) for place, block in self.blocks if place == factor)

    def _keeps(self, factor: int, i: int, j: int) -> bool:
        """Whether the root e_i - e_j annihilates every VEV, as does its opposite."""
        for scalar in self.vevs:
            n, way = self.simple[factor], scalar.directions[factor]
            if way.isdigit():
                if (i < int(way)) != (j < int(way)):
                    return False
            elif way:
                top = find_rep(n, scalar.reps[factor])
                weight = top if way == "high" else tuple(-x for x in conjugate(top))
                if sum(weight[i:j]):
                    return False
        return True

    @cached_property
    def color(self) -> tuple[int, list[int]] | None:
        """The one unbroken SU(3), if it is all that is not abelian."""
        return self.blocks[0] if [len(block) for _, block in self.blocks] == [3] else None

    @cached_property
    def electric(self) -> tuple[tuple[int, ...], int] | None:
        """Electric charge as whole numbers over a unit: the one unbroken U(1) beside color, if there is just one.

        Its scale is set by the W: the lightest charge among gauge bosons without color; where there are none, it is
        the charge as written.
        """
        if self.blocks and self.color is None:
            return None
        factor, inside = self.color or (-1, [])
        colored = [self._root(factor, i, j) for i, j in pairwise(inside)]
        rows = null_space([*map(self._vev_weight, self.vevs), *colored], self.rank)
        if len(rows) != 1:
            return None
        [row] = rows
        sizes = {
            abs(_whole(row, self._root(place, i, j)))
            for place, n in enumerate(self.simple)
            for i, j in combinations(range(n), 2)
            if place != factor or not {i, j} & set(inside)
        } - {0}
        if not sizes and any(row[: self.rank - self.groups.count(1)]):
            return None
        unit = min(sizes) if sizes else min(abs(x) for x in row if x) * self.unit
        common = gcd(unit, *row)
        return tuple(x // common for x in row), unit // common

    def _root(self, factor: int, i: int, j: int) -> Row:
        """e_i - e_j in Dynkin labels, among those of all factors."""
        n, before = self.simple[factor], sum(m - 1 for m in self.simple[:factor])
        row = [0] * self.rank
        for place in range(n - 1):
            row[before + place] = (i == place) - (j == place) - (i == place + 1) + (j == place + 1)
        return tuple(row)

    @cached_property
    def mixer(self) -> tuple[int, ...]:
        """A random mixture of the unbroken generators: one number that tells their charges apart."""
        rng = random.Random(7)
        parts = tuple(rng.getrandbits(64) for _ in self.unbroken)
        return tuple(
            sum(part * row[i] for part, row in zip(parts, self.unbroken, strict=True)) for i in range(self.rank)
        )

    def key_of(self, charges: tuple[int, ...]) -> int:
        """What U(1) charges add to the key of each component."""
        start = self.rank - len(charges)
        return sum(m * q for m, q in zip(self.mixer[start:], charges, strict=True))

    def electric_of(self, charges: tuple[int, ...]) -> int:
        """What they add to the electric charge."""
        if self.electric is None:
            return 0
        start = self.rank - len(charges)
        return sum(m * q for m, q in zip(self.electric[0][start:], charges, strict=True))

    def components(self, reps: tuple[str, ...]) -> tuple[Component, ...]:
        return _components(self, reps)

    def familiar(self, color: tuple[int, int], electric: int, sign: int) -> bool:
        """Whether a quark or charged lepton looks like this; `sign` is that of a positron, which is a convention."""
        if self.blocks and self.color is None:
            return False
        electric *= sign
        if self.electric is None:
            return color in ((1, 0), (0, 1)) and len(self.unbroken) == 2
        thirds, rest = divmod(3 * electric, self.electric[1])
        return not rest and (color, thirds) in FAMILIAR


# (color, three times the charge)
FAMILIAR = {((0, 0), 3), ((0, 0), -3), ((1, 0), 2), ((1, 0), -1), ((0, 1), -2), ((0, 1), 1)}


@lru_cache(maxsize=65_536)
def _components(breaking: Breaking, reps: tuple[str, ...]) -> tuple[Component, ...]:
    """Highest and lowest components of each unbroken multiplet: the others share their mass."""
    sides: tuple[list[Component], list[Component]] = ([], [])
    electric = breaking.electric[0] if breaking.electric else (0,) * breaking.rank
    for highest, found in zip((True, False), sides, strict=True):
        # Factor by factor: what is extreme in each is extreme in all.
        parts: list[tuple[int, int, int, tuple[int, ...], tuple[int, ...]]] = [(0, 0, 0, (), ())]
        start = 0
        for factor, (n, name) in enumerate(zip(breaking.simple, reps, strict=True)):
            size, ends = _extremes(n, name, breaking.blocks_of(factor), highest)
            mixer, charges = breaking.mixer[start : start + n - 1], electric[start : start + n - 1]
            told = [(i, _whole(mixer, w), _whole(charges, w), own, other) for i, w, own, other in ends]
            parts = [
                (place * size + i, key + k, charge + c, labels + own, conjugates + other)
                for place, key, charge, labels, conjugates in parts
                for i, k, c, own, other in told
            ]
            start += n - 1
        for place, key, charge, labels, conjugates in parts:
            side = _side(labels, conjugates, highest)
            if side is not None:
                color = (labels[0], labels[1]) if breaking.color else (0, 0)
                found.append(Component(place, side, key, color, charge))
    return tuple(sides[0] + sides[1])


@lru_cache(maxsize=65_536)
def _extremes(
    n: int, name: str, blocks: tuple[tuple[int, ...], ...], highest: bool
) -> tuple[int, list[tuple[int, Weight, tuple[int, ...], tuple[int, ...]]]]:
    """The dimension; and (place, weight, labels under the unbroken blocks, those of the conjugate) of the extremes."""
    found = []
    weights = raising(n, find_rep(n, name))[1]
    for place, weight in enumerate(weights):
        labels = [[sum(weight[i:j]) for i, j in pairwise(block)] for block in blocks]
        flat = tuple(x for label in labels for x in label)
        if all(x >= 0 if highest else x <= 0 for x in flat):
            found.append((place, weight, flat, tuple(x for label in labels for x in label[::-1])))
    return len(weights), found


def _whole(row: tuple[int, ...], weight: Weight) -> int:
    return sum([m * w for m, w in zip(row, weight, strict=True)])


def _side(labels: tuple[int, ...], conjugates: tuple[int, ...], highest: bool) -> int | None:
    """A multiplet and its conjugate show the same mass: the one with the larger labels is the row."""
    if not any(labels):
        return 0 if highest else None  # it is both: told once
    if highest:
        return 1 if labels >= conjugates else None
    return -1 if labels <= conjugates else None


def null_space(rows: Sequence[Row], width: int) -> list[Row]:
    """Vectors that every row annihilates, in whole numbers."""
    matrix = [list(row) for row in rows]
    pivots: list[int] = []
    for column in range(width):
        at = next((i for i in range(len(pivots), len(matrix)) if matrix[i][column]), None)
        if at is None:
            continue
        top = len(pivots)
        matrix[top], matrix[at] = matrix[at], matrix[top]
        pivot = matrix[top]
        for i, row in enumerate(matrix):
            if i != top and row[column]:
                mixed = [x * pivot[column] - row[column] * y for x, y in zip(row, pivot, strict=True)]
                common = gcd(*mixed) or 1
                matrix[i] = [x // common for x in mixed]
        pivots.append(column)
    scale = lcm(*(matrix[i][column] for i, column in enumerate(pivots)))
    result = []
    for free in (c for c in range(width) if c not in pivots):
        vector = [scale * (c == free) for c in range(width)]
        for i, column in enumerate(pivots):
            vector[column] = -matrix[i][free] * scale // matrix[i][column]
        common = gcd(*vector)
        result.append(tuple(x // common for x in vector))
    return result
