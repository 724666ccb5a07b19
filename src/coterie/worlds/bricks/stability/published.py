"""The public objective of StableLego (arXiv 2402.10711) and BrickGPT (arXiv 2505.05469), for parity.

Equilibrium is a penalty there, not a constraint, so a tall thin column under an off-center plate
counts as unstable although forces that balance it exist. The published model also demands that a
point never pushes and pulls at once; as pulling costs, its optimum does so anyway, and what is left
is a linear program.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import import_module

import highspy
import numpy as np
from scipy.sparse import block_array, csc_array, eye_array

from coterie.worlds.bricks.stability.contacts import find_contacts
from coterie.worlds.bricks.stability.patches import PATCHES, STUD_CAPACITY, Reals
from coterie.worlds.bricks.stability.statics import BALANCES, assemble
from coterie.worlds.bricks.stability.verdict import Verdict
from coterie.worlds.bricks.structure import Brick

LARGEST_PULL_COEF = 1e-3
PULL_COEF = 1e-6
STUD_METERS = 0.0078  # the public residuals are in newtons and newton meters, ours in gram-force and studs
# The costs are multiplied by this: unscaled, the smallest would be near a solver's tolerance.
_COST_SCALE = 1e3
_BALANCE_TOLERANCE = 1e-5


@dataclass(frozen=True)
class PenaltyProgram:
    """Minimize cost @ v subject to matrix @ v = target in the first 5B rows, <= 0 in the others.

    v holds pushes [K], pulls [K], shears and faces, the balances' excess [5B] and lack [5B], and
    the largest pull under each brick [B].
    """

    cost: Reals
    lower: Reals
    matrix: csc_array
    target: Reals
    num_points: int
    num_bricks: int


def build_penalty_program(bricks: Sequence[Brick]) -> PenaltyProgram:
    """Every contact point counts here: the objective looks at the largest pull."""
    contacts = find_contacts(bricks)
    statics = assemble(bricks, contacts, PATCHES.every)
    num_bricks, num_points = len(bricks), statics.num_points
    num_rows, num_others = BALANCES * num_bricks, statics.num_forces - num_points
    forces, points = statics.matrix, statics.matrix[:, :num_points]
    one = eye_array(num_rows)
    largest = csc_array(
        (np.ones(num_points), (np.arange(num_points), contacts.upper[statics.joint])), shape=(num_points, num_bricks)
    )
    matrix = block_array(
        [
            [points, -points, forces[:, num_points:], one, -one, None],
            [None, eye_array(num_points), csc_array((num_points, num_others)), None, None, -largest],
        ],
        format="csc",
    )
    residual = np.tile([1.0, 1.0, 1.0, STUD_METERS, STUD_METERS], num_bricks)
    cost = np.concatenate(
        [
            np.zeros(num_points),
            np.full(num_points, PULL_COEF),
            np.zeros(num_others),
            residual,
            residual,
            np.full(num_bricks, LARGEST_PULL_COEF),
        ]
    )
    lower = np.zeros(len(cost))
    lower[2 * num_points : 2 * num_points + num_others] = statics.lower[num_points:]
    return PenaltyProgram(cost, lower, csc_array(matrix), statics.balance, num_points, num_bricks)


def solve_by_highs(program: PenaltyProgram) -> Reals:
    num_rows, num_columns = program.matrix.shape
    equations = len(program.target)
    below = np.full(num_rows - equations, -np.inf)
    solver = highspy.Highs()
    solver.silent()
    solver.setOptionValue("threads", 1)
    solver.setOptionValue("dual_feasibility_tolerance", 1e-9)
    solver.setOptionValue("primal_feasibility_tolerance", 1e-9)
    solver.passModel(
        num_columns,
        num_rows,
        program.matrix.nnz,
        highspy.MatrixFormat.kColwise.value,
        highspy.ObjSense.kMinimize.value,
        0.0,
        _COST_SCALE * program.cost,
        program.lower,
        np.full(num_columns, np.inf),
        np.concatenate([program.target, below]),
        np.concatenate([program.target, np.zeros(len(below))]),
        program.matrix.indptr.astype(np.int32),
        program.matrix.indices.astype(np.int32),
        program.matrix.data,
        np.zeros(num_columns, np.int32),  # none is an integer
    )
    solver.run()
    status = solver.getModelStatus()
    if status != highspy.HighsModelStatus.kOptimal:
        raise ArithmeticError(f"HiGHS ended with {solver.modelStatusToString(status)}")
    return np.array(solver.getSolution().col_value)


def solve_by_gurobi(program: PenaltyProgram) -> Reals:
    try:
        gurobipy = import_module("gurobipy")
    except ImportError:
        raise ImportError("gurobipy is not installed; run: pip install 'coterie[gurobi]'") from None
    equations = len(program.target)
    rows = program.matrix.tocsr()
    with gurobipy.Env(params={"OutputFlag": 0, "Threads": 1}) as env, gurobipy.Model(env=env) as model:
        v = model.addMVar(len(program.cost), lb=program.lower, obj=_COST_SCALE * program.cost)
        model.addConstr(rows[:equations] @ v == program.target)
        model.addConstr(rows[equations:] @ v <= 0.0)
        model.optimize()
        if model.Status != gurobipy.GRB.OPTIMAL:
            raise ArithmeticError(f"Gurobi ended with status {model.Status}")
        return np.array(v.X, np.float64)


def judge_published(bricks: Sequence[Brick], cap: float, solve: Callable[[PenaltyProgram], Reals]) -> Verdict:
    """A brick fails if it is left unbalanced or pulled past its studs; its load is the largest pull under it.

    The load factor is the one these forces prove, and 0 where a brick is left unbalanced: the
    published program knows none.
    """
    program = build_penalty_program(bricks)
    v = solve(program)
    num_residuals = BALANCES * program.num_bricks
    rest = v[-program.num_bricks - 2 * num_residuals :]
    pull = rest[2 * num_residuals :]
    residual = (rest[:num_residuals] + rest[num_residuals : 2 * num_residuals]).reshape(-1, BALANCES).max(1)
    load = np.where(residual > _BALANCE_TOLERANCE, np.inf, pull / STUD_CAPACITY)
    # The comparison comes first: a pull of exactly nothing proves any load.
    load_factor = cap if load.max() * cap <= 1.0 else float(1.0 / load.max())
    if load_factor > 1.0:
        return Verdict(load_factor, load=load)
    first = int(np.flatnonzero(load >= 1.0)[0])
    if np.isinf(load[first]):
        why = f"cannot be balanced: {residual[first]:.2g} gram-force (studs) are left over"
    else:
        why = f"pulls its studs with {pull[first]:.1f} gram-force, more than {STUD_CAPACITY:g}"
    return Verdict(load_factor, first, f"brick {first + 1}, {bricks[first]}, {why}", load)
