"""Structures whose fate is known by reasoning."""

from __future__ import annotations

import sys
from itertools import takewhile

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.worlds.bricks.stability import (
    MAX_LOAD_FACTOR,
    VERDICT_CAP,
    analyze,
    analyze_prefixes,
    iterate_prefixes,
)
from coterie.worlds.bricks.structure import Brick
from test_stability_exact import overloaded_structure, some_structure


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


def test_halves_that_would_each_tear_lean_on_each_other_as_an_arch() -> None:
    def half(foot: int, plates: int) -> list[Brick]:
        return [Brick(1, 1, foot, 0, 0), *(Brick(8, 1, plates, 0, z) for z in range(1, 13))]

    left, right = half(0, 0), half(15, 8)
    assert not analyze(left).stable and not analyze(right).stable
    apart = [brick._replace(x=brick.x + 1) for brick in right]
    assert analyze([*left, *apart]).load_factor == pytest.approx(100 / (12 * 3.03 * 3.25), rel=1e-6)
    # Touching, they push: thrust high up against shear at the feet. Only pushing is needed.
    assert analyze([*left, *right]).stable


@pytest.mark.parametrize(("plates", "stands"), [(8, True), (9, False)])
def test_eight_long_plates_hang_by_their_end_and_nine_do_not(plates: int, stands: bool) -> None:
    # The stud at the end of n plates pushes at its far point with P and pulls at the three others
    # with f: 3 f - P = 3.03 n and P + f = 4 * 3.5 * 3.03 n, so f = 3.75 * 3.03 n, at most 100.
    gate = [*column(plates + 1), *column(plates + 1, x=7), Brick(8, 1, 0, 0, plates + 1)]
    verdict = analyze([*gate, *(Brick(1, 8, 3, 0, z) for z in range(plates, 0, -1))])
    assert verdict.stable is stands
    assert verdict.load_factor == pytest.approx(100 / (3.75 * 3.03 * plates), rel=1e-6)


def test_a_load_is_the_share_of_capacity_that_a_brick_takes() -> None:
    post, plate = Brick(1, 1, 0, 0, 0), Brick(8, 1, 0, 0, 1)
    assert analyze([post, plate]).load[1] == pytest.approx(3.03 * 3.25 / 100)
    assert analyze([post]).load == pytest.approx([0.0])
    falling = analyze([post, *(plate._replace(z=z) for z in range(1, 13))])
    assert falling.load.max() == pytest.approx(1 / falling.load_factor)
    assert falling.scores[0] == 0.0
    floating = analyze([post, plate, plate._replace(z=5)])
    assert np.isnan(floating.load[:2]).all() and floating.load[2] == np.inf


def test_a_lower_cap_changes_no_verdict_and_no_partial_credit() -> None:
    rng = np.random.default_rng(4)
    for _ in range(30):
        bricks = overloaded_structure(rng, 12)
        full, capped, verdict = analyze(bricks), analyze(bricks, cap=1.5), analyze(bricks, "verdict")
        assert capped.load_factor == pytest.approx(min(full.load_factor, 1.5), rel=1e-6)
        assert verdict.load_factor == pytest.approx(min(full.load_factor, VERDICT_CAP), rel=1e-6)
        assert full.stable == capped.stable == verdict.stable


@pytest.mark.parametrize(("height", "passes"), [(6, True), (7, False)])
def test_the_published_objective_gives_up_on_tall_columns_that_stand(height: int, passes: bool) -> None:
    # Every joint below the plate has to pull against the same torque. Together their pulls cost
    # 1e-3 (height + 1), leaving the plate unbalanced .0078: less from the eighth joint on.
    bricks = [*column(height), Brick(8, 1, 0, 0, height)]
    assert analyze(bricks, "published").stable is passes
    assert analyze(bricks).stable


def test_the_published_program_says_which_brick_fails() -> None:
    floating = analyze([Brick(2, 4, 0, 0, 0), Brick(1, 1, 0, 0, 5)], "published")
    assert (floating.load_factor, floating.weakest) == (0.0, 1)
    assert floating.reason.startswith("brick 2, 1x1 (0,0,5), cannot be balanced")
    torn = analyze([Brick(1, 1, 0, 0, 0), *(Brick(8, 1, 0, 0, z) for z in range(1, 12))], "published")
    assert not torn.stable
    assert "pulls its studs with" in torn.reason


def test_connectivity_asks_only_for_a_chain_of_studs() -> None:
    torn = [Brick(1, 1, 0, 0, 0), *(Brick(8, 1, 0, 0, z) for z in range(1, 15))]
    assert analyze(torn, "connectivity").stable
    assert analyze([*torn, Brick(1, 1, 9, 9, 3)], "connectivity").weakest == 15


def test_no_program_holds_up_nothing() -> None:
    for program in ("limit_load", "verdict", "published", "connectivity"):
        assert not analyze([], program).stable
    assert analyze_prefixes([]) == []


def test_settings_that_cannot_be_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    brick = [Brick(1, 1, 0, 0, 0)]
    with pytest.raises(ValueError, match="no stability program 'magic'; write one of limit_load, verdict"):
        analyze(brick, "magic")
    with pytest.raises(ValueError, match="cap is 1; write a number above 1"):
        analyze(brick, cap=1)
    monkeypatch.setitem(sys.modules, "gurobipy", None)
    with pytest.raises(ImportError, match=r"gurobipy is not installed; run: pip install 'coterie\[gurobi\]'"):
        analyze(brick, "gurobi")


def test_prefixes_float_until_they_are_tied_in() -> None:
    # The deck of a bridge before its second pier, from the wrong end.
    bricks = [Brick(6, 2, 0, 0, 1), Brick(2, 2, 0, 0, 0), Brick(1, 1, 5, 1, 2), Brick(2, 2, 4, 0, 0)]
    verdicts = analyze_prefixes(bricks)
    assert [v.weakest for v in verdicts] == [0, None, None, None]
    assert [v.stable for v in verdicts] == [False, True, True, True]


def test_prefixes_can_be_watched_until_the_first_that_falls() -> None:
    tower = [Brick(1, 1, 0, 0, 0), *(Brick(8, 1, 0, 0, z) for z in range(1, 19))]
    standing = list(takewhile(lambda verdict: verdict.stable, iterate_prefixes(tower, VERDICT_CAP)))
    assert len(standing) == 11


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), x=st.integers(0, 30), y=st.integers(0, 30))
def test_moving_a_structure_changes_nothing(seed: int, x: int, y: int) -> None:
    bricks = some_structure(np.random.default_rng(seed), 15)
    moved = [b._replace(x=b.x + x, y=b.y + y) for b in bricks]
    here, there = analyze(bricks), analyze(moved)
    assert there.stable == here.stable
    assert there.load_factor == pytest.approx(here.load_factor, rel=1e-6)
    if here.stable and here.load_factor == MAX_LOAD_FACTOR:
        assert there.load == pytest.approx(here.load, abs=1e-6)
