"""The greatest multiple of its own weight that a structure can carry, as a linear program that grows."""

from __future__ import annotations

from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from coterie.worlds.bricks.stability.contacts import Contacts, Indices
from coterie.worlds.bricks.stability.patches import Reals
from coterie.worlds.bricks.stability.statics import BALANCES, Statics

_LOWER, _BASIC, _FREE, _UPPER = 0, 1, 2, 3
_STATUS = np.array(
    [
        highspy.HighsBasisStatus.kLower,
        highspy.HighsBasisStatus.kBasic,
        highspy.HighsBasisStatus.kZero,
        highspy.HighsBasisStatus.kUpper,
    ],
    object,
)


@dataclass(frozen=True)
class Columns:
    """Some forces, as compressed columns; rows count from the program's first brick."""

    start: NDArray[np.int32]  # [F + 1]
    index: NDArray[np.int32]
    value: Reals
    lower: Reals  # [F]

    def between(self, first: int, last: int) -> Columns:
        entries = slice(self.start[first], self.start[last])
        start = self.start[first : last + 1] - self.start[first]
        return Columns(start, self.index[entries], self.value[entries], self.lower[first:last])


@dataclass(frozen=True)
class Limit:
    """The optimum: column 0 of the program is the load factor, the forces follow."""

    load_factor: float
    forces: Reals  # [F]
    prices: Reals  # [F] what a gram-force more of each limit would be worth


class LimitLoad:
    """Maximize t subject to A x = t w, x >= lower, t <= cap; always feasible, at t = 0."""

    def __init__(self, cap: float) -> None:
        self.solver = highspy.Highs()
        self.solver.silent()
        # Presolve would throw the basis away, and like the other two costs more than it saves here.
        for name, setting in (
            ("threads", 1),
            ("presolve", "off"),
            ("simplex_dual_edge_weight_strategy", 1),
            ("dual_simplex_cost_perturbation_multiplier", 0.0),
        ):
            self.solver.setOptionValue(name, setting)
        self.solver.changeObjectiveSense(highspy.ObjSense.kMaximize)
        self.solver.addCol(1.0, 0.0, cap, 0, [], [])

    def add_bricks(self, weight: Reals) -> None:
        """Five rows a brick; the weight is what its third balance must come to at t = 1."""
        num_rows = BALANCES * len(weight)
        zero = np.zeros(num_rows)
        # How many weights come before each row: one stands in the third of every five.
        start = ((np.arange(num_rows) + 2) // BALANCES).astype(np.int32)
        column = np.zeros(len(weight), np.int32)
        self._check(self.solver.addRows(num_rows, zero, zero, len(weight), start, column, -weight))

    def add_forces(self, columns: Columns) -> None:
        num_forces = len(columns.lower)
        cost, upper = np.zeros(num_forces), np.full(num_forces, np.inf)
        self._check(
            self.solver.addCols(
                num_forces,
                cost,
                columns.lower,
                upper,
                len(columns.value),
                columns.start[:-1],
                columns.index,
                columns.value,
            )
        )

    def start_from(self, status: NDArray[np.int64]) -> None:
        """Begin at a basis of forces; t waits at its cap, so that no price is wrong from the start."""
        basis = highspy.HighsBasis()
        basis.col_status = [_STATUS[_UPPER], *_STATUS[status]]
        basis.row_status = [_STATUS[_LOWER]] * self.solver.getNumRow()
        basis.valid = True
        self._check(self.solver.setBasis(basis))

    def solve(self) -> Limit:
        self.solver.run()
        status = self.solver.getModelStatus()
        if status != highspy.HighsModelStatus.kOptimal:
            raise ArithmeticError(f"HiGHS ended with {self.solver.modelStatusToString(status)}")
        solution = self.solver.getSolution()
        values, prices = np.array(solution.col_value), np.array(solution.col_dual)
        return Limit(float(values[0]), values[1:], prices[1:])

    @staticmethod
    def _check(status: highspy.HighsStatus) -> None:
        assert status == highspy.HighsStatus.kOk, status


def solve_limit_load(statics: Statics, contacts: Contacts, supports: Indices, cap: float) -> Limit:
    """The limit load of a structure in which every brick is joined to the ground."""
    program = LimitLoad(cap)
    program.add_bricks(statics.weight)
    program.add_forces(Columns(statics.start, statics.index, statics.value, statics.lower))
    program.start_from(tree_basis(statics, len(contacts.upper), supports))
    return program.solve()


def tree_basis(statics: Statics, num_joints: int, supports: Indices) -> NDArray[np.int64]:
    """Each brick held by its support alone: three points and two shears a brick, a triangular basis.

    From here the simplex method need only repair what these joints cannot hold, instead of
    first bringing five forces a brick into the basis.
    """
    num_points = statics.num_points
    status = np.full(statics.num_forces, _LOWER)
    status[num_points : num_points + 2 * num_joints] = _FREE
    bounds = np.searchsorted(statics.joint, np.arange(num_joints + 1))
    first = bounds[supports]
    count = bounds[supports + 1] - first
    # Corners run around the patch: every third is a triangle as wide as can be.
    for basic in (first, first + (count + 1) // 3, first + (2 * count + 1) // 3):
        status[basic] = _BASIC
    status[num_points + 2 * supports] = status[num_points + 2 * supports + 1] = _BASIC
    return status
