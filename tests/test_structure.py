from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coterie.worlds.bricks.structure import (
    MASSES,
    SIZES,
    Brick,
    BrickError,
    best_overlap,
    find_fault,
    parse_bricks,
    print_bricks,
    voxels_of,
)

places = st.integers(0, 19)
bricks = st.builds(
    lambda size, x, y, z: Brick(size[0], size[1], x, y, z), st.sampled_from(SIZES), places, places, places
)


@given(st.lists(bricks))
def test_parsing_undoes_printing(structure: list[Brick]) -> None:
    assert parse_bricks(print_bricks(structure)) == structure


@given(st.text() | st.text("0123456789x(), \n"))
def test_garbage_is_refused_with_its_line_or_read_exactly(text: str) -> None:
    try:
        parsed = parse_bricks(text)
    except BrickError as error:
        told = str(error)
    else:
        told = "line by line"
        assert print_bricks(parsed).removesuffix("\n") == text.removesuffix("\n")
    assert told.startswith("line ")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("2x4 (0,0,0)\n2x4(0,0,1)\n", "line 2: '2x4(0,0,1)' is no brick; write it as '2x6 (0,1,2)'"),
        ("3x3 (0,0,0)\n", "line 1: there is no 3x3 brick"),
        ("1x1 (0, 0,0)\n", "line 1"),
        ("1x1 (-1,0,0)\n", "line 1"),
        ("1x1 (٣,0,0)\n", "line 1"),
        ("1x1 (0,0,0)\n\n1x1 (0,0,1)\n", "line 2: ''"),
    ],
)
def test_a_wrong_line_is_named_with_its_fault(text: str, message: str) -> None:
    with pytest.raises(BrickError) as caught:
        parse_bricks(text)
    assert message in str(caught.value)


def test_the_library_has_fourteen_oriented_sizes() -> None:
    assert len(SIZES) == 14
    assert Brick(6, 2, 0, 0, 0).mass == Brick(2, 6, 0, 0, 0).mass == MASSES[2, 6] == 3.23


def test_faults_name_the_brick() -> None:
    assert find_fault([Brick(2, 4, 18, 16, 19)], 20) == ""
    assert find_fault([Brick(2, 4, 19, 0, 0)], 20).startswith("brick 1, 2x4 (19,0,0), is out of bounds")
    assert find_fault([Brick(1, 1, 0, 0, 20)], 20).startswith("brick 1")
    clash = find_fault([Brick(2, 2, 0, 0, 0), Brick(1, 1, 5, 5, 0), Brick(1, 8, 1, 1, 0)], 20)
    assert clash == "brick 3, 1x8 (1,1,0), overlaps brick 1, 2x2 (0,0,0)"


def test_overlap_is_that_of_the_best_shift_in_the_plane() -> None:
    target = voxels_of([Brick(2, 4, 0, 0, 0), Brick(2, 2, 0, 0, 1)], 20)
    moved = voxels_of([Brick(2, 4, 7, 9, 0), Brick(2, 2, 7, 9, 1)], 20)
    assert best_overlap(moved, target) == 1.0
    # 8 of 12 cells in common.
    assert best_overlap(voxels_of([Brick(2, 4, 3, 3, 0)], 20), target) == pytest.approx(8 / 12)
    # One layer up, only the 2x2 meets the 2x4: 4 in common, 8 + 12 - 4 in all.
    assert best_overlap(voxels_of([Brick(2, 4, 3, 3, 1)], 20), target) == pytest.approx(4 / 16)
    assert best_overlap(voxels_of([Brick(2, 4, 0, 0, 7)], 20), target) == 0.0


@given(st.lists(bricks, max_size=6), st.lists(bricks, max_size=6))
def test_overlap_equals_brute_force_over_shifts(one: list[Brick], other: list[Brick]) -> None:
    dim = 28
    a, b = voxels_of(one, dim)[:10, :10, :4], voxels_of(other, dim)[:10, :10, :4]
    best = 0.0
    if a.any() and b.any():
        for dx in range(-9, 10):
            for dy in range(-9, 10):
                shifted = np.zeros((30, 30, 4), np.bool_)
                shifted[10 + dx : 20 + dx, 10 + dy : 20 + dy] = a
                fixed = np.zeros((30, 30, 4), np.bool_)
                fixed[10:20, 10:20] = b
                best = max(best, (shifted & fixed).sum() / (shifted | fixed).sum())
    assert best_overlap(a, b) == pytest.approx(best)
