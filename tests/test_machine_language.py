"""The compact language: three tokens a block, and masks that let exactly the valid machines through."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
import pytest

from coterie.rollouts import Task
from coterie.worlds.base import LanguageError, trace_legal
from coterie.worlds.check import draw_at_random
from coterie.worlds.load import load_world
from coterie.worlds.machines import MachinesWorld
from coterie.worlds.machines.blocks import BLOCKS, CATAPULT_LEVEL, ROOT
from coterie.worlds.machines.fitting import MOST_FACES
from coterie.worlds.machines.language import WRITTEN, MachineLanguage
from coterie.worlds.machines.tree import Part, TreeError, lay_out, parse_parts, print_machine, read_machine
from coterie.worlds.machines.world import hand_built

ANY = Task("any", "")


def throwing(task: Task) -> Collection[str]:
    return CATAPULT_LEVEL


@pytest.mark.parametrize("name", ["car", "catapult", "thrower"])
def test_hand_built_machines_are_written_and_read_back(name: str) -> None:
    language = MachineLanguage(24)
    tokens = language.encode(hand_built(name))
    assert read_machine(language.decode(tokens)) == read_machine(hand_built(name))
    assert trace_legal(language, [ANY], [tokens])[0] is not None


def test_the_car_in_tokens_by_hand() -> None:
    language = MachineLanguage(8)
    text = print_machine([Part("0"), Part("2", 0, 3), Part("9", 0, 0, 1, 0)])
    spelled = [language.vocabulary[t] for t in language.encode(text)]
    assert spelled == ["2:powered_wheel", "p0", "f3", "9:rubber_band", "p0", "f0", "<to>", "p1", "f0", "<end>"]


def test_a_prompt_is_spelled_in_words_and_digits() -> None:
    language = MachineLanguage(8)
    spelled = [language.vocabulary[t] for t in language.encode_prompt("a car up a slope of 12 degrees with 4 kg")]
    assert spelled == ["a", "car", "up", "a", "slope", "of", "1", "2", "degrees", "with", "4", "kg", "<build>"]
    with pytest.raises(LanguageError, match="'horse' is not a word this world knows"):
        language.encode_prompt("a horse")


def test_too_long_a_machine_cannot_be_written() -> None:
    with pytest.raises(LanguageError, match="more than max_blocks = 4"):
        MachineLanguage(4).encode(hand_built("car"))


def test_a_block_cut_off_is_left_out() -> None:
    language = MachineLanguage(8)
    tokens = language.encode(print_machine([Part("0"), Part("2", 0, 3), Part("9", 0, 0, 1, 0)]))
    assert parse_parts(language.decode(tokens[:8])) == [Part("0"), Part("2", 0, 3)]
    assert parse_parts(language.decode(tokens[:2])) == [Part("0")]


def test_masks_let_exactly_the_valid_blocks_through() -> None:
    """Every kind, parent and face, held against the rules of the tree, on machines drawn from the masks themselves."""
    language, rng = MachineLanguage(10, throwing), np.random.default_rng(3)
    checked = 0
    for tokens in draw_at_random(language, [ANY] * 8, rng):
        body = tokens[:-1]
        for cut in range(0, len(body) + 1, 3):
            so_far = parse_parts(language.decode(body[:cut]))
            constraint = language.constraint([ANY])
            for token in body[:cut]:
                constraint.advance(np.array([token]))
            mask = constraint.legal()[0]
            if mask[1]:  # waiting for the other end
                continue
            for number, kind in enumerate(WRITTEN):
                if BLOCKS[kind].two_ended or kind not in CATAPULT_LEVEL or cut == 27:
                    continue
                places = valid_places(so_far, kind)
                assert mask[language.starts[0] + number] == bool(places), (so_far, kind)
                if places and rng.random() < 0.3:
                    assert legal_places(language, body[:cut], number) == places, (so_far, kind)
                    checked += len(places)
    assert checked > 300


def valid_places(so_far: list[Part], kind: str) -> set[tuple[int, int]]:
    found = set()
    for parent, part in enumerate(so_far):
        for face in range(len(BLOCKS[part.kind].faces)):
            try:
                lay_out([*so_far, Part(kind, parent, face)])
                found.add((parent, face))
            except TreeError:
                pass
    return found


def legal_places(language: MachineLanguage, body: list[int], number: int) -> set[tuple[int, int]]:
    found = set()
    parents = np.arange(language.max_blocks) + language.starts[1]
    for parent in parents:
        constraint = language.constraint([ANY])
        for token in (*body, language.starts[0] + number):
            constraint.advance(np.array([token]))
        if constraint.legal()[0, parent]:
            constraint.advance(np.array([parent]))
            faces = constraint.legal()[0, language.starts[2] : language.starts[2] + MOST_FACES]
            found |= {(int(parent - language.starts[1]), int(face)) for face in np.flatnonzero(faces)}
    return found


def test_rows_that_leave_do_not_disturb_the_others() -> None:
    language, tokens = MachineLanguage(16), MachineLanguage(16).encode(hand_built("thrower"))
    alone, among = language.constraint([ANY]), language.constraint([ANY] * 3)
    for place, token in enumerate(tokens[:-1]):
        if place == 9:
            among.keep(np.array([2]))
        np.testing.assert_array_equal(among.legal()[-1], alone.legal()[0])
        rows = 3 if place < 9 else 1
        among.advance(np.array([0] * (rows - 1) + [token]))
        alone.advance(np.array([token]))


def test_a_task_is_offered_its_level_only() -> None:
    world = MachinesWorld()
    car, catapult = (next(t for t in world.tasks("train") if t.id == kind) for kind in ("car", "catapult"))
    first = world.language().constraint([car, catapult]).legal()
    boulder = world.language().starts[0] + WRITTEN.index("36")
    assert first[:, boulder].tolist() == [False, True]
    everything = load_world("machines", {"blocks": "all"}).language()
    assert everything is not None
    large = everything.vocabulary.index("46:large_powered_wheel")
    assert everything.constraint([car]).legal()[0, large]


def test_whatever_is_drawn_is_valid_on_every_level() -> None:
    world = MachinesWorld(blocks="all", max_blocks=30)
    tasks = [world.tasks("train")[i] for i in range(0, 100, 3)]
    language = world.language()
    for tokens in draw_at_random(language, tasks, np.random.default_rng(5)):
        assert read_machine(language.decode(tokens)).parts[0] == Part(ROOT)
