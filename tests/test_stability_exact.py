"""The stability programs against formulations written independently, stud by stud, for scipy's linprog.

Run as a script for as many and as large structures as you have time for:
    python tests/test_stability_exact.py --structures 1000 --largest 120
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.sparse import csr_array, hstack, vstack

from coterie.worlds.bricks.laying import Builder, lay_bricks
from coterie.worlds.bricks.shapes import all_shapes
from coterie.worlds.bricks.stability import MAX_LOAD_FACTOR, VERDICT_CAP, analyze, analyze_prefixes
from coterie.worlds.bricks.stability.published import build_penalty_program, solve_by_highs
from coterie.worlds.bricks.structure import SIZES, Brick

SHAPES = list(all_shapes())


def random_structure(rng: np.random.Generator, count: int) -> list[Brick]:
    """Bricks dropped where they touch something from above or below; rarely, one that touches nothing."""
    extent, height = 5 + count // 6, int(rng.integers(3, 12))
    filled = np.zeros((extent + 8, extent + 8, height + 2), np.bool_)  # layers shifted up by one
    loose = rng.choice([0.0, 0.001])
    bricks: list[Brick] = []
    while len(bricks) < count:
        h, w = SIZES[rng.integers(len(SIZES))]
        x, y, z = int(rng.integers(extent)), int(rng.integers(extent)), int(rng.integers(height))
        column = filled[x : x + h, y : y + w]
        held = z == 0 or column[:, :, z].any() or column[:, :, z + 2].any()
        if not column[:, :, z + 1].any() and (held or rng.random() < loose):
            column[:, :, z + 1] = True
            bricks.append(Brick(h, w, x, y, z))
    return bricks


def overloaded_structure(rng: np.random.Generator, count: int) -> list[Brick]:
    """Long plates and small ones piled over few studs: what stands here barely does."""
    bricks = [Brick(1, 1, 8, 8, z) for z in range(min(count, int(rng.integers(1, 4))))]
    filled = {(8, 8, b.z) for b in bricks}
    while len(bricks) < count:
        h, w = SIZES[rng.choice([0, 3, 4, 11, 13])]
        top = bricks[-1] if rng.random() < 0.7 else bricks[rng.integers(len(bricks))]
        x = int(rng.integers(max(0, top.x - h + 1), top.x + top.h))
        y = int(rng.integers(max(0, top.y - w + 1), top.y + top.w))
        z = top.z + (1 if rng.random() < 0.8 or top.z == 0 else -1)
        cells = {(i, j, z) for i in range(x, x + h) for j in range(y, y + w)}
        if not cells & filled:
            filled |= cells
            bricks.append(Brick(h, w, x, y, z))
    return bricks


def laid_structure(rng: np.random.Generator, count: int) -> list[Brick]:
    """Shapes of the captions side by side, laid by a hasty builder."""
    bricks: list[Brick] = []
    shift = 0
    while len(bricks) < count:
        shape = SHAPES[rng.integers(len(SHAPES))]
        laid = lay_bricks(shape.voxels(), Builder(care=0.5, slip_rate=0.01), rng)
        bricks += [brick._replace(x=brick.x + shift) for brick in laid]
        shift += shape.wide + int(rng.integers(2))
    return bricks[:count]


def some_structure(rng: np.random.Generator, largest: int) -> list[Brick]:
    make = (random_structure, overloaded_structure, laid_structure)[rng.integers(3)]
    return make(rng, int(rng.integers(2, 1 + (min(largest, 30) if make is overloaded_structure else largest))))


class Model:
    """Every force of every stud by itself, as the model is described; gram-force and studs."""

    def __init__(self, bricks: Sequence[Brick]) -> None:
        self.entries: dict[tuple[int, int], float] = defaultdict(float)
        self.free: list[bool] = []
        self.pulls: dict[int, int] = {}  # column of each pull: the brick above it
        owner = {
            (x, y, b.z): i for i, b in enumerate(bricks) for x in range(b.x, b.x + b.h) for y in range(b.y, b.y + b.w)
        }
        middle = [(b.x + b.h / 2, b.y + b.w / 2, b.z + 0.5) for b in bricks]
        tall = 9.6 / 7.8

        def act(column: int, brick: int, at: tuple[float, float, float], force: tuple[float, float, float]) -> None:
            x, y, z = at[0] - middle[brick][0], at[1] - middle[brick][1], tall * (at[2] - middle[brick][2])
            torques = (y * force[2] - z * force[1], z * force[0] - x * force[2])
            for balance, amount in enumerate((*force, *torques)):
                if amount:
                    # Torque about y as written here has the sign of the right-hand rule.
                    self.entries[5 * brick + balance, column] += amount

        def pair(over: int, under: int | None, at: tuple[float, float, float], way: tuple[int, int, int]) -> int:
            column = len(self.free)
            self.free.append(False)
            act(column, over, at, way)
            if under is not None:
                act(column, under, at, (-way[0], -way[1], -way[2]))
            return column

        for (x, y, z), brick in owner.items():
            under = owner.get((x, y, z - 1))
            if under is not None or z == 0:
                narrow = min(bricks[brick].h, bricks[brick].w) == 1
                for dx, dy in (
                    ((0, -0.25), (0, 0.25), (-0.25, 0), (0.25, 0))
                    if narrow
                    else ((0.125, -0.125), (-0.25, 0), (0.125, 0.125))
                ):
                    point = (x + 0.5 + dx, y + 0.5 + dy, float(z))
                    pair(brick, under, point, (0, 0, 1))
                    self.pulls[pair(brick, under, point, (0, 0, -1))] = brick
                for way in ((1, 0, 0), (0, 1, 0)):
                    self.free[pair(brick, under, (x + 0.5, y + 0.5, float(z)), way)] = True
            for way in ((1, 0, 0), (0, 1, 0)):
                near = owner.get((x - way[0], y - way[1], z))
                if near is not None and near != brick:
                    # A push acts at half height, and yaw is not modelled: it turns nothing.
                    pair(brick, near, (x + 0.5, y + 0.5, z + 0.5), way)
        rows, columns = zip(*self.entries, strict=True) if self.entries else ((), ())
        self.matrix = csr_array((list(self.entries.values()), (rows, columns)), shape=(5 * len(bricks), len(self.free)))
        self.weight = np.zeros(5 * len(bricks))
        self.weight[2::5] = [brick.mass for brick in bricks]

    def limit_load(self) -> float:
        """The largest t up to 10 that the forces can balance."""
        matrix: Any = hstack([self.matrix, csr_array(-self.weight[:, None])])
        bounds = [(None if free else 0, 100 if column in self.pulls else None) for column, free in enumerate(self.free)]
        cost = np.zeros(len(bounds) + 1)
        cost[-1] = -1.0
        result = linprog(cost, A_eq=matrix, b_eq=np.zeros(len(self.weight)), bounds=[*bounds, (0, 10)])
        assert result.fun is not None, result.message
        return -float(result.fun)

    def published(self) -> tuple[float, float, bool]:
        """The least of the public objective, in gram-force; the mean score there, and whether all are above 0."""
        num_rows, num_forces = self.matrix.shape
        num_bricks, num_pulls = num_rows // 5, len(self.pulls)
        # Absolute values from above: e >= +-(A x - w). One e a balance, then one D a brick.
        excess = -csr_array(np.eye(num_rows))
        none = csr_array((num_rows, num_bricks))
        over = hstack([self.matrix, excess, none])
        under = hstack([-self.matrix, excess, none])
        pull = np.zeros((num_pulls, num_forces + num_rows + num_bricks))
        for row, (column, brick) in enumerate(self.pulls.items()):
            pull[row, column], pull[row, num_forces + num_rows + brick] = 1.0, -1.0
        cost = np.zeros(pull.shape[1])
        cost[list(self.pulls)] = 1e-6
        cost[num_forces : num_forces + num_rows] = np.tile([1, 1, 1, 0.0078, 0.0078], num_bricks)
        cost[num_forces + num_rows :] = 1e-3
        matrix: Any = vstack([over, under, csr_array(pull)])
        result = linprog(
            1e4 * cost,
            A_ub=matrix,
            b_ub=np.concatenate([self.weight, -self.weight, np.zeros(num_pulls)]),
            bounds=[(None if free else 0, None) for free in self.free] + [(0, None)] * (num_rows + num_bricks),
            options={"primal_feasibility_tolerance": 1e-9, "dual_feasibility_tolerance": 1e-9},
        )
        assert result.x is not None and result.fun is not None, result.message
        left = result.x[num_forces : num_forces + num_rows].reshape(-1, 5).max(1)
        largest = result.x[num_forces + num_rows :]
        scores = np.where(left > 1e-5, 0.0, np.maximum(1.0 - largest / 100.0, 0.0))
        return float(result.fun) / 1e4, float(scores.mean()), bool(scores.min() > 0)


def differences(seed: int, structures: int, largest: int) -> tuple[int, list[str]]:
    """How many of the structures stand, and those on which the pipeline and the exact program differ."""
    rng = np.random.default_rng(seed)
    stand, wrong = 0, []
    for _ in range(structures):
        bricks = some_structure(rng, largest)
        exact = Model(bricks).limit_load()
        full, short = analyze(bricks), analyze(bricks, "verdict")
        stand += full.stable
        same = full.stable == short.stable == (exact > 1.0)
        if not same or full.load_factor != pytest.approx(exact, rel=1e-5, abs=1e-6):
            wrong.append(f"{exact} exactly, {full.load_factor} here: {bricks}")
    return stand, wrong


@pytest.mark.parametrize(("structures", "largest"), [(150, 30), (50, 120)])
def test_verdicts_and_load_factors_equal_the_exact_program(structures: int, largest: int) -> None:
    stand, wrong = differences(largest, structures, largest)
    assert not wrong, wrong[0]
    assert 0.3 < stand / structures < 0.9


def test_published_is_the_optimum_of_the_public_objective() -> None:
    rng = np.random.default_rng(2)
    failing = 0
    for k in range(40):
        bricks = overloaded_structure(rng, 5 + k // 2) if k % 2 else some_structure(rng, 25)
        least, mean_score, passes = Model(bricks).published()
        program = build_penalty_program(bricks)
        assert program.cost @ solve_by_highs(program) == pytest.approx(least, rel=1e-6)
        verdict = analyze(bricks, "published")
        assert verdict.stable == passes
        # Where it fails, the optimum need not say which brick: scores stop at 0, and so their mean is not unique.
        if verdict.stable:
            assert verdict.scores.mean() == pytest.approx(mean_score, abs=1e-6)
        # What the public objective passes does stand; the reverse need not be.
        assert analyze(bricks).stable or not verdict.stable
        failing += not verdict.stable
    assert 10 < failing < 30


@pytest.mark.parametrize("cap", [VERDICT_CAP, 3.0, MAX_LOAD_FACTOR])
def test_prefixes_get_the_verdicts_of_structures_on_their_own(cap: float) -> None:
    rng = np.random.default_rng(3)
    for k in range(20):
        bricks = overloaded_structure(rng, 20) if k % 2 else some_structure(rng, 40)
        if k % 3 == 0:
            # Out of order, bricks float until others come.
            rng.shuffle(bricks)
        for verdict, prefix in zip(analyze_prefixes(bricks, cap), prefixes_of(bricks), strict=True):
            alone = analyze(prefix, cap=cap)
            assert verdict.stable == alone.stable
            assert verdict.load_factor == pytest.approx(alone.load_factor, rel=1e-6, abs=1e-7)
            assert (verdict.weakest is None) == (alone.weakest is None)
            assert (verdict.load == np.inf).tolist() == (alone.load == np.inf).tolist()
            assert (verdict.load.max() < 1.0) == alone.stable


def prefixes_of(bricks: list[Brick]) -> list[list[Brick]]:
    return [bricks[:k] for k in range(1, len(bricks) + 1)]


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Compare the pipeline with the exact program.")
    parser.add_argument("--structures", type=int, default=1000)
    parser.add_argument("--largest", type=int, default=120)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    standing, found = differences(chosen.seed, chosen.structures, chosen.largest)
    print(f"{chosen.structures} structures, {standing} stand, {len(found)} differ")
    print("\n".join(found))
