"""Construction trees: the JSON, the frames, and every rule of validity with its reason."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.worlds.machines.blocks import BLOCKS, CAR_LEVEL, CATAPULT_LEVEL
from coterie.worlds.machines.frames import AXES, FACINGS, face_of, overlap, put, turn
from coterie.worlds.machines.making import make_machine
from coterie.worlds.machines.tree import (
    REASONS,
    Part,
    TreeError,
    json_schema,
    lay_out,
    print_machine,
    read_machine,
)
from coterie.worlds.machines.world import hand_built

ROOT: dict[str, Any] = {"id": "0", "order_id": 0, "parent": -1, "bp_id": -1}


def single(order: int, kind: str, parent: int, face: int) -> dict[str, Any]:
    return {"id": kind, "order_id": order, "parent": parent, "bp_id": face}


def double(order: int, kind: str, a: tuple[int, int], b: tuple[int, int]) -> dict[str, Any]:
    return {"id": kind, "order_id": order, "parent_a": a[0], "bp_id_a": a[1], "parent_b": b[0], "bp_id_b": b[1]}


def reason_of(blocks: Any) -> tuple[str, str]:
    with pytest.raises(TreeError) as caught:
        read_machine(blocks if isinstance(blocks, str) else json.dumps(blocks), CATAPULT_LEVEL)
    return caught.value.reason, str(caught.value)


def test_a_tree_of_both_kinds_of_blocks_is_written_as_it_was_read() -> None:
    blocks = [ROOT, single(1, "63", 0, 0), single(2, "15", 0, 4), double(3, "9", (1, 8), (2, 0))]
    text = print_machine(read_machine(json.dumps(blocks)).parts)
    assert json.loads(text) == blocks
    assert print_machine(read_machine(text).parts) == text


def test_words_around_a_fenced_tree_are_passed_over() -> None:
    text = "First I thought of this:\n```json\n[1]\n```\nbut better is\n```json\n" + json.dumps([ROOT]) + "\n```\nDone."
    assert read_machine(text).parts == (Part("0"),)


@pytest.mark.parametrize(
    ("facing", "left", "right", "up", "down"),
    [
        ("z+", "x-", "x+", "y+", "y-"),
        ("z-", "x+", "x-", "y+", "y-"),
        ("x+", "z+", "z-", "y+", "y-"),
        ("x-", "z-", "z+", "y+", "y-"),
        ("y+", "x-", "x+", "z-", "z+"),
        ("y-", "x-", "x+", "z+", "z-"),
    ],
)
def test_children_face_as_published(facing: str, left: str, right: str, up: str, down: str) -> None:
    number = FACINGS.index(facing)
    found = [FACINGS[turn(number, side)] for side in ("left", "right", "up", "down")]
    assert found == [left, right, up, down]


def test_every_facing_is_a_turn_and_no_mirror_image() -> None:
    for axes in AXES:
        assert round(np.linalg.det(axes)) == 1


def test_where_blocks_lie_by_hand() -> None:
    # A log forward from the root, a wheel on its right at the far end, in twentieths of a meter.
    machine = read_machine(json.dumps([ROOT, single(1, "63", 0, 0), single(2, "2", 1, 6)]))
    log, wheel = machine.places[1], machine.places[2]
    assert log is not None and wheel is not None
    assert (log.low, log.high) == ((-10, -10, 10), (10, 10, 70))
    assert (FACINGS[wheel.facing], wheel.low, wheel.high) == ("x+", (10, -20, 40), (20, 20, 80))
    assert wheel.middle == (0.75, 0.0, 3.0)


def test_the_table_has_the_published_masses_and_faces() -> None:
    masses = {"0": 0.25, "15": 0.3, "1": 0.5, "63": 1, "2": 1, "5": 0.5, "22": 1, "36": 5, "30": 0.5, "9": 0.4, "35": 3}
    assert {kind: BLOCKS[kind].mass for kind in masses} == masses
    faces = {"0": 6, "15": 5, "1": 9, "63": 13, "2": 1, "46": 9, "16": 5, "36": 0, "30": 1, "9": 0}
    assert {kind: len(BLOCKS[kind].faces) for kind in faces} == faces
    assert len(BLOCKS) == 29
    assert {kind for kind, block in BLOCKS.items() if block.two_ended} == {"7", "9", "45"}


@pytest.mark.parametrize(
    ("blocks", "reason", "told"),
    [
        ("nonsense", "json", "not JSON"),
        ("[" * 100_000, "json", "not JSON"),
        ({}, "json", "a JSON list"),
        ([], "json", "a JSON list"),
        ("[" + "{}," * 70 + "{}]", "size", "71 blocks are more than 64"),
        ([1], "keys", "block 0 is not an object"),
        ([ROOT | {"more": 1}], "keys", "its keys are id, order_id, parent, bp_id"),
        ([ROOT, single(1, "99", 0, 0)], "block", "block 1: \"id\" is '99'"),
        ([ROOT | {"id": 0}], "block", "as a text"),
        ([ROOT, single(1, "2", 0, 0) | {"bp_id": True}], "keys", "whole numbers"),
        ([ROOT, single(1, "2", 0, 0) | {"bp_id": 0.0}], "keys", "whole numbers"),
        ([single(0, "15", -1, -1)], "root", "block 0 must be"),
        ([ROOT, single(1, "0", 0, 0)], "root", "a second starting block"),
        ([ROOT, single(2, "15", 0, 0)], "order", "block 1 has order_id 2"),
        ([ROOT, single(1, "46", 0, 0)], "block", "large powered wheel, which this task does not allow"),
        ([ROOT, single(1, "15", 1, 0)], "parent", "its parent 1 does not come before it"),
        ([ROOT, single(1, "15", -1, 0)], "parent", "its parent -1 does not"),
        ([ROOT, single(1, "15", 0, 6)], "face", "a starting block, has 6 faces and no face 6"),
        ([ROOT, double(1, "9", (0, 0), (0, 1)), single(2, "15", 1, 0)], "face", "a rubber band, has 0 faces"),
        ([ROOT, single(1, "15", 0, 0), single(2, "15", 0, 0)], "face", "face 0 of block 0 is taken"),
        ([ROOT, single(1, "9", 0, 0)], "keys", "its keys are id, order_id, parent_a"),
        ([ROOT, double(1, "15", (0, 0), (0, 1))], "keys", "its keys are id, order_id, parent, bp_id"),
        ([ROOT, double(1, "9", (0, 0), (0, 0))], "ends", "both ends"),
        # A log to the front and one to the right of the next block, which comes back over it.
        ([ROOT, single(1, "2", 0, 2), single(2, "1", 0, 0), single(3, "2", 2, 1)], "overlap", "overlaps block 1"),
        ([ROOT, *(single(i, "63", i - 1, 0) for i in range(1, 7))], "size", "19 m along z; at most 17"),
        ([ROOT, single(1, "63", 0, 4), *(single(i, "63", i - 1, 0) for i in range(2, 4))], "size", "10 m along y"),
        ('[{"id": "0", "id": "0", "order_id": 0, "parent": -1, "bp_id": -1}]', "json", "a key twice"),
    ],
)
def test_every_broken_rule_is_named(blocks: Any, reason: str, told: str) -> None:
    found, message = reason_of(blocks)
    assert found == reason
    assert told in message


def test_a_block_in_a_container_is_no_overlap_but_its_neighbor_is() -> None:
    inside = [ROOT, single(1, "30", 0, 4), single(2, "15", 1, 0)]
    assert len(read_machine(json.dumps(inside)).parts) == 3
    # The small block in the container carries another one, which is in the container too.
    assert reason_of([*inside, single(3, "15", 2, 1)])[0] == "overlap"


def test_touching_is_not_overlapping() -> None:
    root = put("0", (0, 0, 0), 0)
    beside = put("15", *face_of("0", root, 0))
    assert not overlap(root, beside)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.sampled_from(["car", "catapult"]))
def test_made_machines_are_valid_and_survive_the_round_trip(seed: int, kind: str) -> None:
    allowed = CATAPULT_LEVEL if kind == "catapult" else CAR_LEVEL
    parts = make_machine(kind, allowed, 20, np.random.default_rng(seed))
    assert read_machine(print_machine(parts), allowed) == lay_out(parts)
    assert sum(part.kind == "2" for part in parts) <= 8


VALUE: st.SearchStrategy[Any] = st.one_of(
    st.integers(-3, 70), st.sampled_from([*BLOCKS, "", "99", None, True, 1.5, [], {}, 10**30])
)
BLOCK = st.dictionaries(
    st.sampled_from(["id", "order_id", "parent", "bp_id", "parent_a", "bp_id_a", "parent_b", "bp_id_b", "x"]), VALUE
)


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.lists(BLOCK), st.text(), VALUE))
def test_anything_at_all_is_a_machine_or_has_a_reason(blocks: Any) -> None:
    reason = "none"
    try:
        read_machine(blocks if isinstance(blocks, str) else json.dumps(blocks))
    except TreeError as error:
        reason = error.reason
    assert reason in (*REASONS, "none")


def test_the_schema_takes_machines_and_refuses_what_is_none() -> None:
    schema = json_schema(CATAPULT_LEVEL)
    for name in ("car", "catapult", "thrower"):
        assert matches(json.loads(hand_built(name)), schema)
    assert not matches([], schema)
    assert not matches([single(0, "15", -1, -1)], schema)
    assert not matches([ROOT, single(1, "46", 0, 0)], schema)
    assert not matches([ROOT, single(1, "9", 0, 0)], schema)
    assert not matches([ROOT, single(1, "15", 0, 13)], schema)
    assert not matches([ROOT, single(2, "15", 0, 0)], schema)
    assert not matches([ROOT, single(1, "15", 1, 0)], schema)
    assert not matches([ROOT, single(1, "15", 0, 0)], json_schema(CATAPULT_LEVEL, 1))


def matches(value: Any, schema: dict[str, Any]) -> bool:
    """As much of JSON Schema as ours uses."""
    if "anyOf" in schema:
        return any(matches(value, option) for option in schema["anyOf"])
    if "const" in schema:
        return bool(value == schema["const"])
    if schema["type"] == "array":
        first, rest = schema["prefixItems"], schema["items"]
        sized = schema["minItems"] <= len(value) <= schema["maxItems"]
        return sized and all(matches(v, first[i] if i < len(first) else rest) for i, v in enumerate(value))
    if schema["type"] == "object":
        known = schema["properties"]
        return set(schema["required"]) == value.keys() and all(matches(value[k], known[k]) for k in value)
    if schema["type"] == "integer":
        return type(value) is int and bool(schema["minimum"] <= value <= schema["maximum"])
    return value in schema["enum"]
