"""Construction trees: BesiegeField's JSON, read and written, and every rule a machine must keep."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from coterie.worlds.machines.blocks import BLOCKS, CONTAINER, ROOT
from coterie.worlds.machines.frames import UNIT, Place, face_of, overlap, put

SINGLE_KEYS = ("id", "order_id", "parent", "bp_id")
DOUBLE_KEYS = ("id", "order_id", "parent_a", "bp_id_a", "parent_b", "bp_id_b")
LARGEST = 64  # blocks a machine may have at all
ENVELOPE = (17.0, 9.5, 17.0)  # meters along x, y and z
# Why a machine may be invalid; `physics` is found only by simulating it.
REASONS = ("json", "keys", "root", "order", "block", "parent", "face", "ends", "overlap", "size", "physics")


class TreeError(ValueError):
    """A tree that is no machine; `reason` is one of REASONS."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        assert reason in REASONS
        self.reason = reason


class Part(NamedTuple):
    """One block of a machine: its kind, and the block and face it is attached to; two-ended ones have two."""

    kind: str
    parent: int = -1
    face: int = -1
    parent_b: int = -1
    face_b: int = -1


class Machine(NamedTuple):
    """A valid machine: its parts in order and where each lies; None where a part has no volume."""

    parts: tuple[Part, ...]
    places: tuple[Place | None, ...]


def read_machine(text: str, allowed: Collection[str] | None = None) -> Machine:
    """The machine that a text describes, or TreeError with the block and the reason."""
    return lay_out(parse_parts(text), allowed)


def parse_parts(text: str) -> list[Part]:
    """The blocks in a JSON list; words around a fenced list, as language models write them, are passed over."""
    fenced = re.findall(r"```(?:json)?\s*\n(.*?)```", text, re.DOTALL) if "```" in text else None
    try:
        blocks = json.loads(fenced[-1] if fenced else text, object_pairs_hook=_no_key_twice)
    except (ValueError, RecursionError) as error:
        raise TreeError("json", f"this is not JSON: {error}"[:200]) from None
    if not isinstance(blocks, list) or not blocks:
        raise TreeError("json", "a machine is a JSON list of blocks, the starting block first")
    if len(blocks) > LARGEST:
        raise TreeError("size", f"{len(blocks)} blocks are more than {LARGEST}")
    return [_read_block(number, block) for number, block in enumerate(blocks)]


def _no_key_twice(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError(f"a block has a key twice among {', '.join(key for key, _ in pairs)}"[:150])
    return found


def _read_block(number: int, block: Any) -> Part:
    """One block, with everything about it that can be known without the others."""
    if not isinstance(block, dict):
        raise TreeError("keys", f"block {number} is not an object with {', '.join(SINGLE_KEYS)}")
    kind = block.get("id")
    if not isinstance(kind, str) or kind not in BLOCKS:
        raise TreeError(
            "block", f'block {number}: "id" is {str(kind)[:20]!r}; write one of {", ".join(BLOCKS)} as a text'
        )
    keys = DOUBLE_KEYS if BLOCKS[kind].two_ended else SINGLE_KEYS
    if block.keys() != set(keys):
        raise TreeError("keys", f"block {number} is a {BLOCKS[kind].name}: its keys are {', '.join(keys)}")
    numbers = [block[key] for key in keys[1:]]
    if any(type(value) is not int for value in numbers):
        raise TreeError("keys", f"block {number}: {', '.join(keys[1:])} must be whole numbers")
    if numbers[0] != number:
        raise TreeError("order", f"block {number} has order_id {numbers[0]}; count from 0 in the order of the list")
    return Part(kind, *numbers[1:])


def print_machine(parts: Sequence[Part]) -> str:
    """The JSON of a machine, a block a line."""
    lines = []
    for number, part in enumerate(parts):
        keys = DOUBLE_KEYS if BLOCKS[part.kind].two_ended else SINGLE_KEYS
        lines.append(json.dumps(dict(zip(keys, (part.kind, number, *part[1:]), strict=False))))
    return "[" + ",\n ".join(lines) + "]"


def lay_out(parts: Sequence[Part], allowed: Collection[str] | None = None) -> Machine:
    """Where every block lies; TreeError names the first that breaks a rule."""
    if parts[0] != Part(ROOT):
        raise TreeError("root", f'block 0 must be {{"id": "{ROOT}", "order_id": 0, "parent": -1, "bp_id": -1}}')
    places: list[Place | None] = [put(ROOT, (0, 0, 0), 0)]
    taken: set[tuple[int, int]] = set()
    for number, part in enumerate(parts[1:], 1):
        if allowed is not None and part.kind not in allowed:
            raise TreeError("block", f"block {number} is a {BLOCKS[part.kind].name}, which this task does not allow")
        if part.kind == ROOT:
            raise TreeError("root", f"block {number} is a second starting block")
        places.append(_attach(parts, places, number, taken))
    _check_size([place for place in places if place])
    return Machine(tuple(parts), tuple(places))


def _attach(
    parts: Sequence[Part], places: Sequence[Place | None], number: int, taken: set[tuple[int, int]]
) -> Place | None:
    part = parts[number]
    two_ended = BLOCKS[part.kind].two_ended
    ends = [(part.parent, part.face)] + ([(part.parent_b, part.face_b)] if two_ended else [])
    for parent, face in ends:
        if not 0 <= parent < number:
            raise TreeError("parent", f"block {number}: its parent {parent} does not come before it")
        count = len(BLOCKS[parts[parent].kind].faces)
        if not 0 <= face < count:
            name = BLOCKS[parts[parent].kind].name
            raise TreeError("face", f"block {number}: block {parent}, a {name}, has {count} faces and no face {face}")
    if two_ended:
        if ends[0] == ends[1]:
            raise TreeError("ends", f"block {number}: both ends of the {BLOCKS[part.kind].name} are at one face")
        return None
    if ends[0] in taken:
        raise TreeError("face", f"block {number}: face {part.face} of block {part.parent} is taken")
    taken.add(ends[0])
    carrier = places[part.parent]
    assert carrier is not None, "blocks without volume have no faces"
    place = put(part.kind, *face_of(parts[part.parent].kind, carrier, part.face))
    for other, filled in enumerate(places):
        inside = other == part.parent and parts[other].kind == CONTAINER
        if filled is not None and not inside and overlap(place, filled):
            raise TreeError("overlap", f"block {number}, a {BLOCKS[part.kind].name}, overlaps block {other}")
    return place


def _check_size(places: Sequence[Place]) -> None:
    for axis, limit in enumerate(ENVELOPE):
        extent = max(p.high[axis] for p in places) - min(p.low[axis] for p in places)
        if extent > limit * UNIT:
            raise TreeError("size", f"the machine is {extent / UNIT:g} m along {'xyz'[axis]}; at most {limit:g}")


def json_schema(allowed: Collection[str] | None = None, max_blocks: int = LARGEST) -> dict[str, Any]:
    """A JSON schema of machines, for grammars over a language model's tokens.

    It knows the keys, the kinds, the order, that parents come earlier, and the count of faces at most; which faces
    are free is for `read_machine`.
    """
    kinds = [kind for kind in BLOCKS if allowed is None or kind in allowed]
    face = {"type": "integer", "minimum": 0, "maximum": max(len(BLOCKS[kind].faces) for kind in kinds) - 1}
    single = [kind for kind in kinds if kind != ROOT and not BLOCKS[kind].two_ended]
    double = [kind for kind in kinds if BLOCKS[kind].two_ended]

    def block(names: Sequence[str], keys: Sequence[str], place: int) -> dict[str, Any]:
        earlier = {"type": "integer", "minimum": 0, "maximum": place - 1}
        values = {key: face if key.startswith("bp") else earlier for key in keys[2:]}
        if place == 0:
            values = {key: {"const": -1} for key in keys[2:]}
        properties = {"id": {"type": "string", "enum": list(names)}, "order_id": {"const": place}, **values}
        return {"type": "object", "properties": properties, "required": list(keys), "additionalProperties": False}

    def either(place: int) -> dict[str, Any]:
        kinds_of_block = [block(single, SINGLE_KEYS, place)] + ([block(double, DOUBLE_KEYS, place)] if double else [])
        return {"anyOf": kinds_of_block}

    return {
        "type": "array",
        "prefixItems": [block([ROOT], SINGLE_KEYS, 0), *(either(place) for place in range(1, max_blocks))],
        "items": False,
        "minItems": 1,
        "maxItems": max_blocks,
    }
