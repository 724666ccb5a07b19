"""Does it stand? Rigid bricks, studs that hold up to a limit, solved as a linear program.

Model: Liu et al., StableLego (arXiv 2402.10711). Units are gram-force and studs, so that the
numbers stay near one and a solver's tolerance means something. The program maximizes t, the
multiple of its own weight that the structure can carry: it stands when t > 1, and the shortfall
below 1 is a smooth measure of how far it is from standing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csc_array
from scipy.sparse.csgraph import connected_components

from coterie.worlds.bricks.structure import Brick

STUD_CAPACITY = 100.0  # gram-force of friction that one contact point holds
HALF_HEIGHT = 0.5 * 9.6 / 7.8  # of a brick, in studs
MAX_LOAD_FACTOR = 10.0
# Contact points in a stud's cell, by whether the upper brick is one stud narrow.
NARROW_POINTS = np.array([(0, -1 / 4), (0, 1 / 4), (-1 / 4, 0), (1 / 4, 0)])
WIDE_POINTS = np.array([(1 / 8, -1 / 8), (-1 / 4, 0), (1 / 8, 1 / 8)])
GROUND = -1

Indices = NDArray[np.int64]
Reals = NDArray[np.float64]


@dataclass(frozen=True)
class Verdict:
    """What the solver says: the load factor, capped, and the first brick that is not held."""

    load_factor: float
    weakest: int | None = None
    reason: str = ""

    @property
    def stable(self) -> bool:
        return self.load_factor > 1.0


@dataclass(frozen=True)
class Contacts:
    """Who touches whom. Vertical contacts are stud cells; sideways ones are pairs of bricks."""

    upper: Indices  # [C] one entry a stud cell
    lower: Indices  # [C] GROUND where the cell stands on the base plate
    cell: Indices  # [C, 2] the cell's x and y
    pushed: Indices  # [S] the brick on the far side of a touching face
    pusher: Indices  # [S] the brick on the near side
    axis: Indices  # [S] 0 for x, 1 for y


def find_contacts(bricks: Sequence[Brick]) -> Contacts:
    """All contacts of a structure without overlaps."""
    b = np.array(bricks, np.int64)  # [B, 5]
    areas = b[:, 0] * b[:, 1]
    index = np.repeat(np.arange(len(b)), areas)
    within = np.arange(len(index)) - np.repeat(np.cumsum(areas) - areas, areas)
    width = b[index, 1]
    cell = np.stack([b[index, 2] + within // width, b[index, 3] + within % width], 1)
    level = b[index, 4] + 1
    # A margin of empty cells on every side, so that neighbors need no bounds checks.
    owner = np.full((cell[:, 0].max() + 2, cell[:, 1].max() + 2, level.max() + 1), GROUND, np.int64)
    owner[cell[:, 0], cell[:, 1], level] = index
    below = owner[cell[:, 0], cell[:, 1], level - 1]
    held = (below != GROUND) | (level == 1)

    pairs = []
    for axis, (dx, dy) in enumerate(((1, 0), (0, 1))):
        beside = owner[cell[:, 0] + dx, cell[:, 1] + dy, level]
        touching = (beside != GROUND) & (beside != index)
        found = np.unique(np.stack([beside[touching], index[touching]], 1), axis=0)
        pairs.append(np.column_stack([found, np.full(len(found), axis)]))
    sides = np.concatenate(pairs)
    return Contacts(index[held], below[held], cell[held], sides[:, 0], sides[:, 1], sides[:, 2])


def find_floating(num_bricks: int, contacts: Contacts) -> Indices:
    """The bricks that no chain of studs joins to the ground."""
    # Node 0 is the ground; touching sides join nothing.
    ends = (contacts.upper + 1, contacts.lower + 1)
    graph = coo_array((np.ones(len(ends[0])), ends), shape=(num_bricks + 1,) * 2)
    _, label = connected_components(graph, directed=False)
    return np.flatnonzero(label[1:] != label[0])


@dataclass(frozen=True)
class Statics:
    """Five balances a brick (forces along x, y, z; torques about x, y) times the unknown forces."""

    matrix: csc_array  # [5B, F]
    weight: Reals  # [5B]
    lower: Reals  # [F] the least each force may be
    points_upper: Indices  # [K] the first K forces are contact points: their upper bricks
    points_lower: Indices  # [K] and their lower ones


def assemble(bricks: Sequence[Brick], contacts: Contacts) -> Statics:
    """The equilibrium equations of a structure, as one sparse matrix."""
    b = np.array(bricks, np.float64)
    center = b[:, 2:4] + b[:, 0:2] / 2
    narrow = b[:, 0:2].min(1) == 1

    # Contact points: a force p = support - friction along z, at least -STUD_CAPACITY.
    wide_cells = ~narrow[contacts.upper]
    upper, lower, at = [], [], []
    for cells, points in ((~wide_cells, NARROW_POINTS), (wide_cells, WIDE_POINTS)):
        upper.append(np.repeat(contacts.upper[cells], len(points)))
        lower.append(np.repeat(contacts.lower[cells], len(points)))
        at.append((contacts.cell[cells][:, None] + 0.5 + points).reshape(-1, 2))
    point_upper, point_lower, place = map(np.concatenate, (upper, lower, at))
    num_points = len(point_upper)

    # Shear: one free force along x and one along y for each pair of joined bricks; as yaw is not
    # modelled, the studs of a pair are interchangeable.
    joints = np.unique(np.stack([contacts.upper, contacts.lower], 1), axis=0)
    num_joints, num_sides = len(joints), len(contacts.axis)

    rows: list[NDArray[np.int64]] = []
    columns: list[NDArray[np.int64]] = []
    values: list[Reals] = []

    def put(brick: Indices, balance: int | Indices, column: Indices, value: Reals | float) -> None:
        real = brick != GROUND
        rows.append((5 * brick + balance)[real])
        columns.append(column[real])
        values.append(np.broadcast_to(value, brick.shape)[real])

    column = np.arange(num_points)
    for brick, sign in ((point_upper, 1.0), (point_lower, -1.0)):
        arm = place - center[brick]
        put(brick, 2, column, sign)
        put(brick, 3, column, sign * arm[:, 1])
        put(brick, 4, column, -sign * arm[:, 0])
    # A horizontal force at the interface turns both bricks the same way.
    along_x = num_points + np.arange(num_joints)
    along_y = along_x + num_joints
    for side, sign in ((0, 1.0), (1, -1.0)):
        brick = joints[:, side]
        put(brick, 0, along_x, sign)
        put(brick, 4, along_x, -HALF_HEIGHT)
        put(brick, 1, along_y, sign)
        put(brick, 3, along_y, HALF_HEIGHT)
    column = num_points + 2 * num_joints + np.arange(num_sides)
    put(contacts.pushed, contacts.axis, column, 1.0)
    put(contacts.pusher, contacts.axis, column, -1.0)

    num_forces = num_points + 2 * num_joints + num_sides
    matrix = coo_array(
        (np.concatenate(values), (np.concatenate(rows), np.concatenate(columns))),
        shape=(5 * len(bricks), num_forces),
    ).tocsc()
    weight = np.zeros(5 * len(bricks))
    weight[2::5] = [brick.mass for brick in bricks]
    least = np.concatenate([np.full(num_points, -STUD_CAPACITY), np.full(2 * num_joints, -np.inf), np.zeros(num_sides)])
    return Statics(matrix, weight, least, point_upper, point_lower)


def solve_limit_load(statics: Statics) -> tuple[float, Reals]:
    """The greatest t with matrix @ forces = t * weight, and the reduced cost of each force."""
    num_rows, num_forces = statics.matrix.shape
    lp = highspy.HighsLp()
    lp.num_row_, lp.num_col_ = num_rows, num_forces + 1
    lp.sense_ = highspy.ObjSense.kMaximize
    lp.col_cost_ = np.append(np.zeros(num_forces), 1.0)
    lp.col_lower_ = np.append(statics.lower, 0.0)
    lp.col_upper_ = np.append(np.full(num_forces, np.inf), MAX_LOAD_FACTOR)
    lp.row_lower_ = lp.row_upper_ = np.zeros(num_rows)
    heavy = np.flatnonzero(statics.weight)
    lp.a_matrix_.format_ = highspy.MatrixFormat.kColwise
    lp.a_matrix_.start_ = np.append(statics.matrix.indptr, statics.matrix.nnz + len(heavy)).astype(np.int32)
    lp.a_matrix_.index_ = np.append(statics.matrix.indices, heavy).astype(np.int32)
    lp.a_matrix_.value_ = np.append(statics.matrix.data, -statics.weight[heavy])

    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.passModel(lp)
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS ended with {solver.modelStatusToString(solver.getModelStatus())}")
    solution = solver.getSolution()
    return float(solver.getObjectiveValue()), np.array(solution.col_dual)[:num_forces]


def analyze(bricks: Sequence[Brick]) -> Verdict:
    """Judge a structure that is in bounds and without overlaps."""
    if not bricks:
        return Verdict(0.0, None, "there is no brick")
    contacts = find_contacts(bricks)
    floating = find_floating(len(bricks), contacts)
    if len(floating):
        first = int(floating[0])
        return Verdict(
            0.0, first, f"brick {first + 1}, {bricks[first]}, floats: no chain of studs joins it to the ground"
        )
    statics = assemble(bricks, contacts)
    load_factor, price = solve_limit_load(statics)
    if load_factor > 1.0:
        return Verdict(load_factor)
    # The forces whose limit costs load are the joints that would tear.
    torn = np.flatnonzero(np.abs(price[: len(statics.points_upper)]) > 1e-9)
    if len(torn) == 0:
        return Verdict(load_factor, 0, f"the structure tips over under {load_factor:.2f} of its weight")
    worst = min(torn, key=lambda k: (max(statics.points_upper[k], statics.points_lower[k]), k))
    upper, lower = int(statics.points_upper[worst]), int(statics.points_lower[worst])
    support = "the ground" if lower == GROUND else f"brick {lower + 1}, {bricks[lower]}"
    return Verdict(
        load_factor,
        upper,
        f"brick {upper + 1}, {bricks[upper]}, tears off {support}: the studs hold {load_factor:.2f} of the load",
    )
