"""What vacuum values leave unbroken: charges, roots, color and electric charge.

Every VEV is a weight vector, so what leaves it alone is spanned by diagonal generators and root vectors. A
component is neutral if its weight is a combination of the VEVs' weights. Light charged particles are familiar
only where the unbroken group is (part of) SU(3) x U(1), as quarks and charged leptons.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache
from itertools import pairwise, product
from math import lcm
from typing import NamedTuple

from coterie.worlds.theory.groups import Weight, conjugate, find_rep, raising
from coterie.worlds.theory.theory import Scalar

Row = tuple[Fraction, ...]


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
        return tuple(map(Fraction, (*weight, *scalar.charges)))

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
            abs(_dot(row, self._root(place, i, j)))
            for place, n in enumerate(self.simple)
            for i, j in product(range(n), repeat=2)
            if place != factor or not {i, j} & set(inside)
        }
        sizes.discard(Fraction(0))
        if sizes:
            scale = 1 / min(sizes)
        elif any(row[: self.rank - self.groups.count(1)]):
            return None
        else:
            scale = 1 / (min(abs(x) for x in row if x) * self.unit)
        unit = lcm(*((x * scale).denominator for x in row))
        return tuple(int(x * scale * unit) for x in row), unit

    def _root(self, factor: int, i: int, j: int) -> Row:
        """e_i - e_j in Dynkin labels, among those of all factors."""
        n, before = self.simple[factor], sum(m - 1 for m in self.simple[:factor])
        row = [Fraction(0)] * self.rank
        for place in range(n - 1):
            row[before + place] = Fraction((i == place) - (j == place) - (i == place + 1) + (j == place + 1))
        return tuple(row)

    @cached_property
    def mixer(self) -> tuple[int, ...]:
        """A random mixture of the unbroken generators: one number that tells their charges apart."""
        rng = random.Random(7)
        mixture = [Fraction(0)] * self.rank
        for row in self.unbroken:
            part = rng.getrandbits(64) * lcm(*(x.denominator for x in row))
            mixture = [m + part * x for m, x in zip(mixture, row, strict=True)]
        return tuple(map(int, mixture))

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
    spaces = [raising(n, find_rep(n, name))[1] for n, name in zip(breaking.simple, reps, strict=True)]
    electric = breaking.electric[0] if breaking.electric else (0,) * breaking.rank
    found = []
    for place, parts in enumerate(product(*spaces)):
        weight: Weight = sum(parts, ())
        labels = [[sum(parts[factor][i:j]) for i, j in pairwise(block)] for factor, block in breaking.blocks]
        side = _side([x for label in labels for x in label], [x for label in labels for x in label[::-1]])
        if side is not None:
            key = sum(m * w for m, w in zip(breaking.mixer, weight, strict=False))
            charge = sum(m * w for m, w in zip(electric, weight, strict=False))
            color = (labels[0][0], labels[0][1]) if breaking.color else (0, 0)
            found.append(Component(place, side, key, color, charge))
    return tuple(found)


def _side(labels: list[int], conjugate_labels: list[int]) -> int | None:
    """A multiplet and its conjugate show the same mass: the one with the larger labels is the row."""
    if not any(labels):
        return 0
    if all(x >= 0 for x in labels) and labels >= conjugate_labels:
        return 1
    if all(x <= 0 for x in labels) and labels <= conjugate_labels:
        return -1
    return None


def null_space(rows: Sequence[Row], width: int) -> list[Row]:
    """Vectors that every row annihilates, exactly."""
    matrix = [list(row) for row in rows]
    pivots: list[int] = []
    for column in range(width):
        at = next((i for i in range(len(pivots), len(matrix)) if matrix[i][column]), None)
        if at is None:
            continue
        top = len(pivots)
        matrix[top], matrix[at] = matrix[at], matrix[top]
        matrix[top] = [x / matrix[top][column] for x in matrix[top]]
        for i in range(len(matrix)):
            if i != top and matrix[i][column]:
                matrix[i] = [x - matrix[i][column] * y for x, y in zip(matrix[i], matrix[top], strict=True)]
        pivots.append(column)
    result = []
    for free in (c for c in range(width) if c not in pivots):
        vector = [Fraction(int(c == free)) for c in range(width)]
        for i, pivot in enumerate(pivots):
            vector[pivot] = -matrix[i][free]
        result.append(tuple(vector))
    return result


def _dot(a: Row, b: Row) -> Fraction:
    return sum((x * y for x, y in zip(a, b, strict=True)), Fraction(0))
