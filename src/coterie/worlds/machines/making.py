"""Machines put together by somebody who has seen machines but not tried them: where a policy starts from.

Their quality varies on purpose, and is capped: never more than a few wheels, arms of one length.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np

from coterie.worlds.machines.blocks import BLOCKS, CONTAINER, ROOT
from coterie.worlds.machines.frames import FACINGS, UNIT, Place, face_of, overlap, put
from coterie.worlds.machines.tree import ENVELOPE, Part

MOST_WHEELS = 3
FRAME = ("15", "1", "63", "41", "35")
TRIES = 12


class Draft:
    """A machine in the making; every block it accepts is valid."""

    def __init__(self, rng: np.random.Generator, allowed: Collection[str]) -> None:
        self.rng, self.allowed = rng, allowed
        self.parts: list[Part] = [Part(ROOT)]
        self.places: list[Place | None] = [put(ROOT, (0, 0, 0), 0)]
        self.taken: set[tuple[int, int]] = set()

    def attach(self, kind: str, parent: int, face: int) -> int | None:
        """The number of the new block, or None where it does not fit."""
        carrier = self.places[parent]
        count = len(BLOCKS[self.parts[parent].kind].faces)
        if carrier is None or kind not in self.allowed or face >= count or (parent, face) in self.taken:
            return None
        place = put(kind, *face_of(self.parts[parent].kind, carrier, face))
        for number, other in enumerate(self.places):
            inside = number == parent and self.parts[number].kind == CONTAINER
            if other is not None and not inside and overlap(place, other):
                return None
        for axis, limit in enumerate(ENVELOPE):
            boxes = [p for p in (*self.places, place) if p]
            if max(p.high[axis] for p in boxes) - min(p.low[axis] for p in boxes) > limit * UNIT:
                return None
        self.taken.add((parent, face))
        self.parts.append(Part(kind, parent, face))
        self.places.append(place)
        return len(self.parts) - 1

    def join(self, kind: str, a: tuple[int, int], b: tuple[int, int]) -> int | None:
        """A two-ended block between two faces."""
        if kind not in self.allowed or a == b:
            return None
        self.parts.append(Part(kind, *a, *b))
        self.places.append(None)
        return len(self.parts) - 1

    def somewhere(self, kind: str, parents: Sequence[int], facings: str = "", tries: int = TRIES) -> int | None:
        """Attach to a random face of one of these blocks, facing along one of the axes named, if any are."""
        for _ in range(tries):
            parent = parents[int(self.rng.integers(len(parents)))]
            carrier, faces = self.places[parent], len(BLOCKS[self.parts[parent].kind].faces)
            if carrier is None or faces == 0:
                continue
            face = int(self.rng.integers(faces))
            _, facing = face_of(self.parts[parent].kind, carrier, face)
            if facings and FACINGS[facing][0] not in facings:
                continue
            made = self.attach(kind, parent, face)
            if made is not None:
                return made
        return None


def make_machine(kind: str, allowed: Collection[str], max_blocks: int, rng: np.random.Generator) -> list[Part]:
    """A machine for this kind of goal, good or bad."""
    draft = Draft(rng, allowed)
    if rng.random() < 0.15:
        _pile(draft, int(rng.integers(1, 9)))
    elif kind == "catapult":
        _catapult(draft)
    else:
        _vehicle(draft)
    return _cut(draft.parts, max_blocks)


def _pick(rng: np.random.Generator, options: Sequence[str], allowed: Collection[str]) -> str:
    usable = [option for option in options if option in allowed]
    return usable[int(rng.integers(len(usable)))]


def _pile(draft: Draft, count: int) -> None:
    """Anything anywhere."""
    kinds = [k for k in BLOCKS if k in draft.allowed and k != ROOT and not BLOCKS[k].two_ended]
    for _ in range(count):
        draft.somewhere(_pick(draft.rng, kinds, draft.allowed), range(len(draft.parts)))


def _frame(draft: Draft, count: int, facings: str = "xz") -> list[int]:
    """The starting block and some more, mostly level."""
    frame = [0]
    for _ in range(count):
        made = draft.somewhere(_pick(draft.rng, FRAME, draft.allowed), frame, facings)
        frame += [made] if made is not None else []
    return frame


def _vehicle(draft: Draft) -> None:
    """A frame and up to three wheels where it occurs to the maker; some of them upright, some not."""
    rng = draft.rng
    frame = _frame(draft, int(rng.integers(1, 5)))
    for _ in range(int(rng.integers(0, MOST_WHEELS + 1))):
        draft.somewhere("2", frame, "x" if rng.random() < 0.7 else "")
    if rng.random() < 0.3:
        draft.somewhere(_pick(rng, ("22", "16", "35", "15"), draft.allowed), frame)
    if rng.random() < 0.15 and len(frame) > 2:
        draft.join("9", (frame[1], 0), (frame[2], 0))


def _catapult(draft: Draft) -> None:
    """A frame, something that turns, one arm, a container and a boulder, if all of it fits."""
    rng = draft.rng
    frame = _frame(draft, int(rng.integers(1, 4)))
    post = draft.somewhere(_pick(rng, ("15", "1", "63"), draft.allowed), frame, "y")
    motor = rng.random() < 0.6
    turning = draft.somewhere("22" if motor else "5", [post] if post is not None else frame, "x" if motor else "")
    if turning is None:
        return
    arm = draft.somewhere(_pick(rng, ("15", "1", "41"), draft.allowed), [turning], "z" if rng.random() < 0.7 else "")
    if arm is None:
        return
    bowl = draft.somewhere("30", [arm], "y" if rng.random() < 0.7 else "", 2 * TRIES)
    if bowl is not None and rng.random() < 0.9:
        draft.attach("36", bowl, 0)
    if not motor or rng.random() < 0.2:
        faces = len(BLOCKS[draft.parts[arm].kind].faces)
        base = frame[int(rng.integers(len(frame)))]
        draft.join("9", (arm, int(rng.integers(faces))), (base, int(rng.integers(5))))
    if rng.random() < 0.3:
        draft.somewhere("35", frame)


def _cut(parts: Sequence[Part], max_blocks: int) -> list[Part]:
    """As many of the first blocks as the language can write."""
    kept, room = [], max_blocks
    for part in parts:
        room -= 2 if BLOCKS[part.kind].two_ended else 1
        if room < 0:
            break
        kept.append(part)
    return kept
