"""Where blocks fit, for many machines at once: free faces, no overlap, inside the envelope.

Every face of every placed block is a slot. For each slot and each shape a block can have, the box it would
fill is kept, and whether it still fits; a new block needs to be held against the boxes of the slots only.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Bools, Ints
from coterie.worlds.machines.blocks import BLOCKS, CONTAINER, ROOT
from coterie.worlds.machines.frames import FACINGS, UNIT, shape_of, to_units
from coterie.worlds.machines.tree import ENVELOPE

Small = NDArray[np.int16]

KINDS = tuple(kind for kind in BLOCKS if kind != ROOT)  # as the language numbers them
MOST_FACES = max(len(block.faces) for block in BLOCKS.values())
SOLID = [kind for kind in KINDS if not BLOCKS[kind].two_ended]
SIZES = list(dict.fromkeys(BLOCKS[kind].size for kind in SOLID))
IS_SOLID = np.array([kind in SOLID for kind in KINDS])
SHAPE_OF = np.array([SIZES.index(BLOCKS[kind].size) if kind in SOLID else 0 for kind in KINDS])
LIMIT = np.array(to_units(ENVELOPE), np.int16)
assert UNIT * max(ENVELOPE) * 4 < np.iinfo(np.int16).max


def _boxes(kind: str) -> NDArray[np.int16]:
    """[facings, 2, 3]: low and high corners from where the block is attached."""
    return np.array([[shape_of(kind, f).low, shape_of(kind, f).high] for f in range(len(FACINGS))], np.int16)


BOXES = np.stack([_boxes(next(k for k in SOLID if BLOCKS[k].size == size)) for size in SIZES], axis=1)
# [kind, facing, face]: place (3) and facing of a child; -1 where there is no such face. The root comes last.
FACES = np.full((len(KINDS) + 1, len(FACINGS), MOST_FACES, 4), -1, np.int16)
for _number, _kind in enumerate((*KINDS, ROOT)):
    for _facing in range(len(FACINGS)):
        for _face, (_place, _child) in enumerate(shape_of(_kind, _facing).faces):
            FACES[_number, _facing, _face] = (*_place, _child)
EXEMPT = np.array([kind == CONTAINER for kind in (*KINDS, ROOT)])


class Fitting:
    """The slots of many machines. Boxes are split by corner and axis: [2, 3, rows, slots, shapes]."""

    def __init__(self, rows: int, max_blocks: int, wanted: Bools) -> None:
        """`wanted` [kinds]: the shapes of other kinds are not followed; nobody may ask for them."""
        slots = max_blocks * MOST_FACES
        followed = np.unique(SHAPE_OF[wanted & IS_SOLID]) if (wanted & IS_SOLID).any() else np.array([0])
        self.boxes = BOXES[:, followed]
        self.shape_of = np.clip(np.searchsorted(followed, SHAPE_OF), 0, len(followed) - 1)
        self.count = np.zeros(rows, np.int64)  # blocks so far, two-ended ones among them
        self.filled = np.zeros((2, 3, rows, max_blocks), np.int16)  # boxes of the placed blocks; empty: low = high = 0
        self.slot = np.full((4, rows, slots), -1, np.int16)  # place and facing of each slot
        self.box = np.zeros((2, 3, rows, slots, len(followed)), np.int16)
        self.fits = np.zeros((rows, slots, len(followed)), np.bool_)
        self.bounds = np.zeros((2, 3, rows), np.int16)
        low, high = (np.array(corner, np.int16)[:, None] for corner in shape_of(ROOT, 0)[:2])
        everywhere = np.arange(rows)
        self._add(
            everywhere,
            np.full(rows, len(KINDS)),
            np.zeros((3, rows), np.int16),
            np.zeros(rows, np.int64),
            np.repeat(low, rows, 1),
            np.repeat(high, rows, 1),
        )

    @property
    def used(self) -> int:
        """Slots that any row may have."""
        return int(self.count.max(initial=1)) * MOST_FACES

    def any_place(self) -> Bools:
        """[rows, kinds]: whether a block of this kind fits anywhere."""
        return np.asarray(self.fits[:, : self.used].any(1))[:, self.shape_of]

    def places(self, kind: Ints) -> Bools:
        """[rows, slots]: where a block of the row's kind fits."""
        return self.fits[np.arange(len(kind)), : self.used, self.shape_of[kind]]

    def faces(self) -> Bools:
        """[rows, slots]: every face, free or not."""
        return np.asarray(self.slot[3, :, : self.used] >= 0)

    def place(self, rows: Ints, kind: Ints, slot: Ints) -> None:
        """Attach a block of this kind in each of these rows."""
        if len(rows) == 0:
            return
        base, facing = self.slot[:3, rows, slot], self.slot[3, rows, slot]
        low, high = self.box[:, :, rows, slot, self.shape_of[kind]]
        self.fits[rows, slot] = False
        self._add(rows, kind, base, facing, low, high)

    def skip(self, rows: Ints) -> None:
        """A block without volume takes a number and nothing else."""
        self.count[rows] += 1

    def _add(self, rows: Ints, kind: Ints, base: Small, facing: Ints, low: Small, high: Small) -> None:
        number = self.count[rows]
        self.count[rows] += 1
        self.filled[0][:, rows, number], self.filled[1][:, rows, number] = low, high
        self._push_out(rows, low, high)
        first = number * MOST_FACES
        slots = first[:, None] + np.arange(MOST_FACES)  # [n, faces]
        faces = np.moveaxis(FACES[kind, facing], 2, 0)  # [4, n, faces]
        there = faces[3] >= 0
        place = faces[:3] + base[:, :, None]
        box = np.moveaxis(self.boxes[faces[3]], (3, 4), (0, 1)) + place[None, :, :, :, None]  # [2, 3, n, faces, shapes]
        self.slot[:3, rows[:, None], slots], self.slot[3, rows[:, None], slots] = place, faces[3]
        self.box[:, :, rows[:, None], slots] = box
        self.fits[rows[:, None], slots] = there[:, :, None] & self._free(rows, number, kind, box)
        self.bounds[0][:, rows] = np.minimum(self.bounds[0][:, rows], low)
        self.bounds[1][:, rows] = np.maximum(self.bounds[1][:, rows], high)
        self._keep_inside(rows)

    def _push_out(self, rows: Ints, low: Small, high: Small) -> None:
        """Slots whose box would meet the new block."""
        used = self.used
        mine = slice(None) if len(rows) == len(self.count) else rows
        apart = np.zeros((len(rows), used, self.fits.shape[2]), np.bool_)
        for axis in range(3):
            apart |= self.box[0, axis, mine, :used] >= high[axis][:, None, None]
            apart |= self.box[1, axis, mine, :used] <= low[axis][:, None, None]
        self.fits[mine, :used] &= apart

    def _free(self, rows: Ints, number: Ints, kind: Ints, box: Small) -> Bools:
        """[n, faces, shapes]: whether the boxes at the new block's faces meet no placed block."""
        blocks = int(number.max()) + 1
        meets = np.ones((len(rows), box.shape[3], box.shape[4], blocks), np.bool_)
        for axis in range(3):
            low, high = (self.filled[corner, axis, rows, :blocks][:, None, None] for corner in range(2))
            meets &= box[0, axis, ..., None] < high
            meets &= low < box[1, axis, ..., None]
        inside = np.flatnonzero(EXEMPT[kind])  # what lies in a container may be in it
        meets[inside, :, :, number[inside]] = False
        return ~np.asarray(meets.any(3))

    def _keep_inside(self, rows: Ints) -> None:
        used = self.used
        mine = slice(None) if len(rows) == len(self.count) else rows
        for axis in range(3):
            lowest = self.bounds[1, axis, mine] - LIMIT[axis]
            highest = self.bounds[0, axis, mine] + LIMIT[axis]
            self.fits[mine, :used] &= self.box[0, axis, mine, :used] >= lowest[:, None, None]
            self.fits[mine, :used] &= self.box[1, axis, mine, :used] <= highest[:, None, None]

    def keep(self, rows: Ints) -> None:
        used = self.used
        self.count, self.bounds, self.filled = self.count[rows], self.bounds[:, :, rows], self.filled[:, :, rows]
        slot, box, fits = self.slot, self.box, self.fits
        self.slot = np.full((4, len(rows), slot.shape[2]), -1, np.int16)
        self.slot[:, :, :used] = slot[:, rows, :used]
        self.box = np.zeros((2, 3, len(rows), *box.shape[3:]), np.int16)
        self.box[:, :, :, :used] = box[:, :, rows, :used]
        self.fits = np.zeros((len(rows), *fits.shape[1:]), np.bool_)
        self.fits[:, :used] = fits[rows, :used]
