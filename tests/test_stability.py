"""Structures whose fate is known by reasoning."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.optimize import linprog

from coterie.worlds.bricks.stability import analyze, assemble, find_contacts
from coterie.worlds.bricks.structure import Brick


def column(height: int, x: int = 0, y: int = 0) -> list[Brick]:
    return [Brick(1, 1, x, y, z) for z in range(height)]


def test_a_brick_on_the_ground_stands() -> None:
    assert analyze([Brick(2, 4, 3, 3, 0)]).stable


def test_a_lone_brick_in_the_air_floats() -> None:
    verdict = analyze([Brick(2, 4, 3, 3, 0), Brick(1, 1, 3, 3, 5)])
    assert (verdict.load_factor, verdict.weakest) == (0.0, 1)
    assert "brick 2, 1x1 (3,3,5), floats" in verdict.reason


@pytest.mark.parametrize(("plates", "stands"), [(1, True), (10, True), (11, False), (14, False)])
def test_ten_long_plates_hang_off_one_stud_and_eleven_do_not(plates: int, stands: bool) -> None:
    # Each 1x8 weighs 3.03 gf and its center is 3.5 studs off; the load turns about the contact point
    # at 1/4 stud, so its arm is 3.25. Against it pull the other points: 100 (1/4 + 1/4 + 1/2) = 100.
    verdict = analyze([Brick(1, 1, 0, 0, 0), *(Brick(8, 1, 0, 0, z) for z in range(1, plates + 1))])
    assert verdict.stable is stands
    assert verdict.load_factor == pytest.approx(min(10.0, 100 / (plates * 3.03 * 3.25)), rel=1e-6)
    if not stands:
        assert verdict.weakest == 1
        assert "tears off brick 1, 1x1 (0,0,0)" in verdict.reason


def test_the_same_plates_centered_stand() -> None:
    # The same weight, half to each side.
    plates = [b for z in range(1, 15) for b in (Brick(8, 1, 4 * (z % 2), 0, z),)]
    assert analyze([Brick(4, 1, 4, 0, 0), *plates]).stable


def test_towers_that_touch_are_not_joined() -> None:
    tower = column(3)
    assert analyze([*tower, Brick(1, 1, 1, 0, 2)]).weakest == 3
    assert analyze([*tower, *column(3, x=1)]).stable


def test_a_brick_hangs_from_studs_above() -> None:
    # A post, a beam on it, and a brick pushed up under the beam's free end.
    hanging = [*column(2), Brick(4, 1, 0, 0, 2), Brick(1, 1, 3, 0, 1)]
    assert analyze(hanging).stable


def test_a_bridge_needs_both_piers_joined() -> None:
    deck = [Brick(4, 2, 0, 0, 1), Brick(4, 2, 4, 0, 1)]
    piers = [Brick(2, 2, 0, 0, 0), Brick(2, 2, 6, 0, 0)]
    assert analyze([*piers, *deck]).stable
    # A middle span that rests on nothing is held only once a layer above ties it in.
    gap = [Brick(2, 2, 0, 0, 0), Brick(2, 2, 8, 0, 0), Brick(4, 2, 0, 0, 1), Brick(2, 2, 4, 0, 1), Brick(4, 2, 6, 0, 1)]
    assert analyze(gap).weakest == 3
    assert analyze([*gap, Brick(6, 2, 2, 0, 2)]).stable


def test_a_counterweight_holds_what_would_tear() -> None:
    # Twelve plates to one side of a stud tear off; as many to the other side hold them.
    one_side = [Brick(1, 1, 9, 0, 0), *(Brick(8, 1, 9, 0, z) for z in range(1, 13))]
    assert not analyze(one_side).stable
    balanced = [Brick(1, 1, 9, 0, 0)]
    for z in range(1, 25):
        balanced.append(Brick(8, 1, 9 if z % 2 else 2, 0, z))
    assert analyze(balanced).stable


def test_moving_a_structure_changes_nothing() -> None:
    rng = np.random.default_rng(0)
    for _ in range(10):
        bricks = random_structure(rng, 12, extent=10)
        moved = [b._replace(x=b.x + 7, y=b.y + 5) for b in bricks]
        assert analyze(moved).load_factor == pytest.approx(analyze(bricks).load_factor, rel=1e-6)


def test_the_load_factor_equals_another_solver_on_separate_forces() -> None:
    """scipy's linprog on support and friction as two forces a point, instead of one merged."""
    rng = np.random.default_rng(1)
    compared = 0
    for _ in range(20):
        bricks = random_structure(rng, int(rng.integers(2, 25)), extent=14)
        contacts = find_contacts(bricks)
        verdict = analyze(bricks)
        if verdict.load_factor == 0.0:
            continue
        statics = assemble(bricks, contacts)
        points = len(statics.points_upper)
        matrix = statics.matrix.toarray()
        friction = -matrix[:, :points]
        system = np.hstack([matrix, friction, -statics.weight[:, None]])
        bounds = [
            *[(0, None)] * points,
            *[(None if np.isinf(low) else low, None) for low in statics.lower[points:]],
            *[(0, 100)] * points,
            (0, 10),
        ]
        cost = np.zeros(system.shape[1])
        cost[-1] = -1.0
        result = linprog(cost, A_eq=system, b_eq=np.zeros(len(system)), bounds=bounds, method="highs-ipm")
        assert result.status == 0
        assert verdict.load_factor == pytest.approx(-result.fun, rel=1e-5)
        compared += 1
    assert compared >= 15


def random_structure(rng: np.random.Generator, count: int, extent: int) -> list[Brick]:
    """Bricks dropped where they touch something, mostly."""
    from coterie.worlds.bricks.structure import SIZES, find_fault

    bricks: list[Brick] = []
    while len(bricks) < count:
        h, w = SIZES[rng.integers(len(SIZES))]
        brick = Brick(h, w, int(rng.integers(extent)), int(rng.integers(extent)), int(rng.integers(0, 6)))
        if find_fault([*bricks, brick], 32):
            continue
        if analyze([*bricks, brick]).load_factor > 0 or rng.random() < 0.001:
            bricks.append(brick)
    return bricks
