"""The two-step language of bricks: what it writes, and that its masks are exact."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL.Image import Image

from coterie.rollouts import Score, Task
from coterie.worlds.base import Example, Language, LanguageError, World, trace_legal
from coterie.worlds.bricks import BricksWorld
from coterie.worlds.bricks.language import AbsoluteLanguage, Legality
from coterie.worlds.bricks.pivot import PivotLanguage
from coterie.worlds.bricks.structure import SIZES, Brick, parse_bricks, print_bricks
from coterie.worlds.check import check_world

TASK = Task("any", "")
LEVELS: tuple[Legality, ...] = ("format", "geometry", "attached")


def spell(language: Language, answer: str) -> str:
    return " ".join(language.vocabulary[token] for token in language.encode(answer))


def all_legal(language: Language, answers: Sequence[Sequence[int]]) -> bool:
    return all(masks is not None for masks in trace_legal(language, [TASK] * len(answers), answers))


def draw_structure(language: Language, num_bricks: int, tokens_a_brick: int, seed: int) -> str:
    """So many bricks drawn evenly from what is legal; fewer where nothing is."""
    rng = np.random.default_rng(seed)
    constraint = language.constraint([TASK])
    tokens: list[int] = []
    for _ in range(num_bricks * tokens_a_brick):
        legal = constraint.legal()
        legal[:, language.end] = False
        if not legal.any():
            break
        tokens.append(int((rng.random(legal.shape) * legal).argmax()))
        constraint.advance(np.array(tokens[-1:]))
    return language.decode(tokens)


def test_a_brick_is_written_from_the_latest_that_holds_it() -> None:
    language = PivotLanguage()
    answer = "2x4 (3,3,0)\n2x4 (3,7,0)\n1x1 (5,3,0)\n2x2 (3,4,1)\n"
    assert spell(language, answer) == (
        "<origin> z0 2x4 x3 y3 p0 dz+0 2x4 dx+0 dy+4 p1 dz+0 1x1 dx+2 dy-4 p0 dz+1 2x2 dx+0 dy+1 <end>"
    )


def test_what_no_brick_reaches_is_written_from_the_origin() -> None:
    # A far foot, and a brick on the far end of a long one.
    answer = "1x8 (0,0,0)\n1x1 (19,19,0)\n1x1 (0,7,1)\n"
    assert spell(PivotLanguage(), answer).split()[5::5] == ["<origin>", "<origin>", "<end>"]
    assert spell(PivotLanguage(max_offset_distance=7), answer).split()[5::5] == ["<origin>", "p0", "<end>"]


def test_examples_come_back_and_are_legal() -> None:
    language, examples = PivotLanguage(legality="attached"), BricksWorld().examples()
    every_hundredth = [examples[i].answer for i in range(0, len(examples), 100)]
    some = [answer for answer in every_hundredth if answer]  # nothing may be left of the hastiest
    assert len(some) > 250
    tokens = [language.encode(answer) for answer in some]
    assert [language.decode(t) for t in tokens] == some
    assert all_legal(language, tokens)


@pytest.mark.parametrize("legality", LEVELS)
@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), num_bricks=st.integers(1, 15), reach=st.integers(1, 9))
def test_both_languages_write_the_same_structures(legality: Legality, seed: int, num_bricks: int, reach: int) -> None:
    absolute = AbsoluteLanguage(12, 15, legality)
    two_step = PivotLanguage(12, 15, legality, max_offset_distance=reach)
    for writer, reader, tokens_a_brick in ((absolute, two_step, 4), (two_step, absolute, 5)):
        answer = draw_structure(writer, num_bricks, tokens_a_brick, seed)
        tokens = reader.encode(answer)
        assert reader.decode(tokens) == answer
        assert all_legal(reader, [tokens])


def all_places(placed: Sequence[Brick], dim: int, legality: Legality) -> list[Brick]:
    """Every brick that may come next, by trying each."""
    filled = np.zeros((dim, dim, dim + 2), np.bool_)  # layers shifted up by one
    for b in placed:
        filled[b.x : b.x + b.h, b.y : b.y + b.w, b.z + 1] = True
    found = []
    for (h, w), x, y, z in product(SIZES, range(dim), range(dim), range(dim)):
        column = filled[x : x + h, y : y + w, z : z + 3]
        fits = x + h <= dim and y + w <= dim and not column[:, :, 1].any()
        held = z == 0 or column[:, :, ::2].any()
        if legality == "format" or (fits and (held or legality == "geometry")):
            found.append(Brick(h, w, x, y, z))
    return found


def all_spellings(placed: Sequence[Brick], found: Sequence[Brick], reach: int) -> list[tuple[str, ...]]:
    """Every way to write each of these bricks next."""
    spelled: list[tuple[str, ...]] = [("<origin>", f"z{b.z}", f"{b.h}x{b.w}", f"x{b.x}", f"y{b.y}") for b in found]
    for (i, p), b in product(enumerate(placed), found):
        dx, dy, dz = b.x - p.x, b.y - p.y, b.z - p.z
        if max(abs(dx), abs(dy), abs(dz)) <= reach:
            spelled.append((f"p{i}", f"dz{dz:+d}", f"{b.h}x{b.w}", f"dx{dx:+d}", f"dy{dy:+d}"))
    return spelled


@pytest.mark.parametrize("legality", LEVELS)
@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), reach=st.sampled_from([1, 2, 5, 9]))
def test_masks_allow_exactly_the_legal_bricks(legality: Legality, seed: int, reach: int) -> None:
    rng = np.random.default_rng(seed)
    dim, rows, max_bricks = 8, 2, 4
    language = PivotLanguage(dim, max_bricks, legality, max_offset_distance=reach)
    constraint = language.constraint([TASK] * rows)
    answers: list[list[int]] = [[] for _ in range(rows)]
    for num_bricks in range(max_bricks):
        lawful = []
        for answer in answers:
            placed = parse_bricks(language.decode(answer))
            lawful.append(all_spellings(placed, all_places(placed, dim, legality), reach))
        for stage in range(5):
            legal = constraint.legal().copy()
            assert legal[:, language.end].all() == legal[:, language.end].any() == (stage == 0 and num_bricks > 0)
            legal[:, language.end] = False
            tokens = (rng.random(legal.shape) * legal).argmax(1)
            for row, token in enumerate(tokens.tolist()):
                allowed = {language.vocabulary[i] for i in np.flatnonzero(legal[row]).tolist()}
                assert allowed == {brick[stage] for brick in lawful[row]}
                lawful[row] = [brick for brick in lawful[row] if brick[stage] == language.vocabulary[token]]
                answers[row].append(token)
            constraint.advance(tokens)
            if num_bricks == 2:  # in the middle of a brick too
                constraint.keep(np.array([1, 0]))
                answers.reverse()
                lawful.reverse()
    assert list(np.flatnonzero(constraint.legal().any(0))) == [language.end]  # max_bricks are placed


def test_rows_that_are_kept_go_on_as_if_alone() -> None:
    language = PivotLanguage(12, 20, "attached")
    answers = [language.encode(draw_structure(language, n, 5, seed=n)) for n in (3, 9, 5, 7)]
    alone = [trace_legal(language, [TASK], [answer])[0] for answer in answers]
    together = trace_legal(language, [TASK] * 4, answers)  # rows leave as they end
    for one, other in zip(alone, together, strict=True):
        assert one is not None and other is not None
        np.testing.assert_array_equal(one, other)


def test_an_ended_row_may_wait_beside_others() -> None:
    language = PivotLanguage(8, 10, "attached")
    first, second = language.encode("2x2 (6,6,0)\n"), language.encode("1x1 (0,0,0)\n1x1 (0,0,1)\n")
    constraint = language.constraint([TASK] * 2)
    for place, token in enumerate(second):
        legal = constraint.legal()
        assert legal[1, token]
        constraint.advance(np.array([first[place] if place < len(first) else language.end, token]))


def full_world(dim: int) -> list[Brick]:
    return [Brick(8, 1, 0, y, z) for z in range(dim) for y in range(dim)]


def test_a_full_world_leaves_only_the_end() -> None:
    language = PivotLanguage(8, 100, "attached")
    constraint = language.constraint([TASK])
    for token in language.encode(print_bricks(full_world(8)))[:-1]:
        assert constraint.legal()[0, token]
        constraint.advance(np.array([token]))
    assert list(np.flatnonzero(constraint.legal()[0])) == [language.end]


def test_a_brick_that_is_walled_in_is_no_pivot() -> None:
    # All but the last brick of a full world: only those near the gap are left to choose.
    language = PivotLanguage(8, 100, "attached", max_offset_distance=2)
    *placed, last = full_world(8)
    constraint = language.constraint([TASK])
    for token in language.encode(print_bricks(placed))[:-1]:
        constraint.advance(np.array([token]))
    near = [f"p{i}" for i, b in enumerate(placed) if last.y - b.y <= 2 and last.z - b.z <= 2]
    allowed = [language.vocabulary[i] for i in np.flatnonzero(constraint.legal()[0]).tolist()]
    assert allowed == ["<end>", "<origin>", *near]


def test_a_world_may_have_fewer_sizes() -> None:
    sizes = ((1, 2), (2, 1))
    for language in (PivotLanguage(sizes=sizes), AbsoluteLanguage(sizes=sizes)):
        assert language.decode(language.encode("2x1 (0,0,0)\n1x2 (0,0,1)\n")) == "2x1 (0,0,0)\n1x2 (0,0,1)\n"
        with pytest.raises(LanguageError, match="line 2: 2x2 is not among this world's sizes: 1x2, 2x1"):
            language.encode("2x1 (0,0,0)\n2x2 (0,0,1)\n")


def test_a_brick_cut_off_by_the_length_limit_is_left_out() -> None:
    language = PivotLanguage()
    tokens = language.encode("2x4 (3,3,0)\n2x2 (3,4,1)\n")
    assert language.decode(tokens[:9]) == "2x4 (3,3,0)\n"


def test_a_reach_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="max_offset_distance is 0; write 1 or more"):
        PivotLanguage(max_offset_distance=0)


@dataclass(frozen=True)
class TwoStepBricks(World):
    """The bricks world, written in two steps."""

    name: str = field(default="two-step bricks", init=False)
    bricks: BricksWorld = field(default_factory=BricksWorld)

    def tasks(self, split: str) -> Sequence[Task]:
        return self.bricks.tasks(split)

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        return self.bricks.score(task, answers)

    def language(self) -> Language:
        return PivotLanguage(self.bricks.world_dim, self.bricks.max_bricks, self.bricks.legality)

    def examples(self) -> Sequence[Example]:
        return self.bricks.examples()

    def picture(self, task: Task, answer: str) -> Image | None:
        return self.bricks.picture(task, answer)


@pytest.mark.parametrize("legality", LEVELS)
def test_a_world_written_in_two_steps_keeps_the_contract(legality: Legality) -> None:
    world = TwoStepBricks(BricksWorld(legality=legality, max_bricks=40))
    assert [finding.problem for finding in check_world(world) if finding.problem] == []
