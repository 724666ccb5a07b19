"""Captions, examples, language and reward of the bricks world."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.rollouts import Task
from coterie.worlds.base import LanguageError
from coterie.worlds.bricks import BricksWorld
from coterie.worlds.bricks.language import AbsoluteLanguage, Legality
from coterie.worlds.bricks.shapes import KINDS, all_shapes
from coterie.worlds.bricks.stability import analyze
from coterie.worlds.bricks.structure import SIZES, Brick, parse_bricks

WORLD = BricksWorld()
TASK = Task("any", "")


def test_the_family_is_large_and_its_splits_share_no_shape() -> None:
    train, heldout = WORLD.tasks("train"), WORLD.tasks("heldout")
    assert len(KINDS) >= 12
    assert len({task.prompt for task in (*train, *heldout)}) == len(train) + len(heldout) > 4000
    assert len(heldout) >= 500
    assert not {task.spec["shape"] for task in train} & {task.spec["shape"] for task in heldout}


def test_some_sizes_are_never_seen_in_training() -> None:
    trained = {(task.spec["shape"].kind, task.spec["shape"].wide) for task in WORLD.tasks("train")}
    unseen = {(name, wide) for name, kind in KINDS.items() for wide in kind.unseen_wide}
    assert len(unseen) >= 6
    assert not unseen & trained


def test_every_shape_fills_the_size_its_caption_says() -> None:
    for shape in all_shapes():
        filled = shape.voxels()
        assert filled.shape == (shape.wide, shape.deep, shape.tall)
        assert all(filled.any(tuple({0, 1, 2} - {axis})).all() for axis in (0, 2)), shape


def test_examples_are_always_the_same_and_mostly_but_not_all_good() -> None:
    assert WORLD.examples()[17] == BricksWorld().examples()[17]
    examples = BricksWorld(legality="geometry").examples()
    some = [examples[i] for i in range(0, len(examples), len(examples) // 200)]
    scores = [WORLD.score(e.task, [e.answer])[0] for e in some]
    assert all(score.valid for score in scores)
    assert 0.6 < np.mean([score.parts["stable"] for score in scores]) < 0.95
    assert 0.9 < np.mean([score.parts["faithfulness"] for score in scores]) < 1.0


def test_likeness_earns_nothing_unless_it_stands() -> None:
    task = next(t for t in WORLD.tasks("train") if t.prompt == "a tower 2 wide 2 deep 4 tall")
    standing = "".join(f"2x2 (0,0,{z})\n" for z in range(4))
    floating = "".join(f"2x2 (0,0,{z})\n" for z in (0, 1, 3))
    rubble = "1x1 (0,0,0)\n"
    good, bad, small = WORLD.score(task, [standing, floating, rubble])
    assert good.success and good.parts["faithfulness"] == 1.0
    assert good.total == pytest.approx(WORLD.valid_weight + WORLD.stability_weight + WORLD.faithfulness_weight)
    assert bad.parts["faithfulness"] == pytest.approx(12 / 16)
    assert bad.total == pytest.approx(WORLD.valid_weight)
    assert "brick 3, 2x2 (0,0,3), floats" in bad.note
    assert small.total == pytest.approx(WORLD.valid_weight + WORLD.stability_weight + 1 / 16)
    assert not small.success


def test_the_seeds_parts_pay_only_what_stands() -> None:
    world = BricksWorld(connectivity_weight=0.5, length_weight=1.0, order_weight=0.25, full_length=4)
    standing, floating, upside_down = world.score(
        TASK, ["2x2 (0,0,0)\n2x2 (0,0,1)\n", "2x2 (0,0,0)\n2x2 (0,0,2)\n", "2x2 (0,0,1)\n2x2 (0,0,0)\n"]
    )
    assert standing.total == pytest.approx(0.1 + 0.25 + 0.5 + 0.5 + 0.25)
    assert (floating.parts["connectivity"], floating.parts["order"]) == (0.5, 0.5)
    assert floating.total == pytest.approx(0.1)
    # The upper brick, laid first, is held by nothing yet; the lower one by the ground.
    assert upside_down.parts["order"] == 0.5


def test_a_size_outside_the_library_is_refused() -> None:
    world = BricksWorld(sizes="2x2 2x4")
    assert world.score(TASK, ["4x2 (0,0,0)\n"])[0].valid
    assert world.score(TASK, ["2x2 (0,0,0)\n1x1 (0,0,1)\n"])[0].note.startswith("line 2: 1x1 is not among the sizes")


def test_a_structure_is_known_by_the_caption_it_would_have_answered() -> None:
    asked = next(t for t in WORLD.tasks("train") if t.prompt == "a tower 2 wide 2 deep 4 tall")
    taller = "".join(f"2x2 (7,3,{z})\n" for z in range(6))
    meant = WORLD.relabel(asked, taller)
    assert meant is not None
    assert WORLD.score(meant, [taller])[0].parts["faithfulness"] == 1.0
    assert meant in WORLD.tasks("train")
    assert WORLD.relabel(asked, "1x1 (0,0,0)\n2x2 (3,3,0)\n") is None
    assert WORLD.relabel(meant, taller) is None  # it is an answer to what was asked


def test_an_unreadable_answer_is_invalid_with_its_line() -> None:
    [score] = WORLD.score(TASK, ["1x1 (0,0,0)\nhello\n"])
    assert not score.valid
    assert score.total == 0.0
    assert score.note.startswith("line 2")


@pytest.mark.parametrize(
    "settings",
    [
        {"world_dim": 5},
        {"max_bricks": 0},
        {"legality": "none"},
        {"actions": "three_step"},
        {"sizes": "1x1 3x3"},
        {"program": "prayer"},
        {"max_offset_distance": 0},
    ],
    ids=lambda s: next(iter(s)),
)
def test_impossible_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        BricksWorld(**settings)  # type: ignore[arg-type]


def test_unknown_words_are_named() -> None:
    with pytest.raises(LanguageError, match="'spaceship' is not a word this world knows"):
        WORLD.language().encode_prompt("a spaceship 4 wide")


def legal_bricks(placed: list[Brick], dim: int, legality: Legality) -> list[Brick]:
    """All bricks that may come next, by trying each."""
    filled = np.zeros((dim, dim, dim + 2), np.bool_)  # layers shifted up by one
    for b in placed:
        filled[b.x : b.x + b.h, b.y : b.y + b.w, b.z + 1] = True
    found = []
    for (h, w), x, y, z in product(SIZES, range(dim), range(dim), range(dim)):
        above_and_below = filled[x : x + h, y : y + w, z : z + 3 : 2]
        fits = x + h <= dim and y + w <= dim and not filled[x : x + h, y : y + w, z + 1].any()
        held = z == 0 or above_and_below.any()
        if legality == "format" or (fits and (held or legality == "geometry")):
            found.append(Brick(h, w, x, y, z))
    return found


@pytest.mark.parametrize("legality", ["format", "geometry", "attached"])
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_masks_allow_exactly_the_legal_bricks(legality: Legality, seed: int) -> None:
    rng = np.random.default_rng(seed)
    dim, rows = 8, 2
    language = AbsoluteLanguage(dim, 12, legality)
    spell = {b: language.encode(str(b))[:4] for b in legal_bricks([], dim, "format")}
    constraint = language.constraint([TASK] * rows)
    answers: list[list[int]] = [[] for _ in range(rows)]
    for num_bricks in range(5):
        lawful = [
            [spell[b] for b in legal_bricks(parse_bricks(language.decode(answer)), dim, legality)] for answer in answers
        ]
        for stage in range(4):
            legal = constraint.legal().copy()
            assert legal[:, language.end].all() == (stage == 0 and num_bricks > 0)
            legal[:, language.end] = False
            tokens = (rng.random(legal.shape) * legal).argmax(1)
            for row in range(rows):
                assert set(np.flatnonzero(legal[row])) == {brick[stage] for brick in lawful[row]}
                lawful[row] = [brick for brick in lawful[row] if brick[stage] == tokens[row]]
                answers[row].append(int(tokens[row]))
            constraint.advance(tokens)
        if num_bricks == 2:
            constraint.keep(np.array([1, 0]))
            answers.reverse()


def test_attached_structures_hold_together() -> None:
    rng = np.random.default_rng(0)
    language = AbsoluteLanguage(20, 15, "attached")
    constraint = language.constraint([TASK] * 20)
    tokens: list[list[int]] = [[] for _ in range(20)]
    for _ in range(60):
        legal = constraint.legal()
        legal[:, language.end] = False
        chosen = (rng.random(legal.shape) * legal).argmax(1)
        constraint.advance(chosen)
        for row, token in enumerate(chosen):
            tokens[row].append(int(token))
    assert constraint.legal()[:, 1:].any() == 0  # max_bricks are placed: only the end is left
    for answer in tokens:
        assert analyze(parse_bricks(language.decode(answer))).load_factor > 0


def test_a_picture_is_drawn_from_back_to_front() -> None:
    # A tall tower behind a low brick: the pixel at the low brick's face shows the low brick.
    picture = WORLD.picture(TASK, "2x2 (0,4,0)\n2x2 (0,4,1)\n2x2 (0,0,0)\n")
    assert picture is not None
    assert picture.size == (320, 320)
    assert len(picture.getcolors(1 << 20) or []) > 50
    assert WORLD.picture(TASK, "garbage") is None
