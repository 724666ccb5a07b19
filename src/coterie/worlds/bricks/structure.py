"""Bricks as text and as voxels: parse, print, and what makes a structure valid."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

# Mass in grams of each size, narrow side first (the published library).
MASSES = {
    (1, 1): 0.43,
    (1, 2): 0.81,
    (1, 4): 1.57,
    (1, 6): 2.28,
    (1, 8): 3.03,
    (2, 2): 1.15,
    (2, 4): 2.16,
    (2, 6): 3.23,
}
# Both orientations of every size: H is the extent along x, W along y.
SIZES: tuple[tuple[int, int], ...] = tuple(sorted({s for a, b in MASSES for s in ((a, b), (b, a))}))

# Not \d and not int(): both also take digits of other scripts.
_LINE = re.compile(r"([0-9]{1,4})x([0-9]{1,4}) \(([0-9]{1,4}),([0-9]{1,4}),([0-9]{1,4})\)")


class BrickError(ValueError):
    """A text that is no structure; the message names the line and the fault."""


class Brick(NamedTuple):
    """H studs along x, W along y; (x, y, z) is the stud nearest the origin."""

    h: int
    w: int
    x: int
    y: int
    z: int

    def __str__(self) -> str:
        return f"{self.h}x{self.w} ({self.x},{self.y},{self.z})"

    @property
    def mass(self) -> float:
        return MASSES[min(self.h, self.w), max(self.h, self.w)]


def print_bricks(bricks: Iterable[Brick]) -> str:
    """One brick a line, each line ended."""
    return "".join(f"{brick}\n" for brick in bricks)


def parse_bricks(text: str) -> list[Brick]:
    """The inverse of `print_bricks`; a last newline may be missing."""
    lines = text.split("\n")
    if lines[-1] == "":
        lines.pop()
    bricks = []
    for number, line in enumerate(lines, 1):
        match = _LINE.fullmatch(line)
        if match is None:
            raise BrickError(f"line {number}: {line[:40]!r} is no brick; write it as '2x6 (0,1,2)'")
        brick = Brick(*map(int, match.groups()))
        if (brick.h, brick.w) not in SIZES:
            sizes = ", ".join(f"{a}x{b}" for a, b in MASSES)
            raise BrickError(f"line {number}: there is no {brick.h}x{brick.w} brick; sizes are {sizes}")
        bricks.append(brick)
    return bricks


def find_fault(bricks: Sequence[Brick], world_dim: int) -> str:
    """The first brick that is out of bounds or overlaps an earlier one, in words; '' if none."""
    owner = np.full((world_dim,) * 3, -1, np.int32)
    for i, b in enumerate(bricks):
        if b.x + b.h > world_dim or b.y + b.w > world_dim or b.z >= world_dim:
            return f"brick {i + 1}, {b}, is out of bounds: the world is {world_dim} studs each way"
        cells = owner[b.x : b.x + b.h, b.y : b.y + b.w, b.z]
        if (other := int(cells.max())) >= 0:
            return f"brick {i + 1}, {b}, overlaps brick {other + 1}, {bricks[other]}"
        cells[...] = i
    return ""


def voxels_of(bricks: Iterable[Brick], world_dim: int) -> NDArray[np.bool_]:
    """[x, y, z]: which cells the bricks fill."""
    filled = np.zeros((world_dim,) * 3, np.bool_)
    for b in bricks:
        filled[b.x : b.x + b.h, b.y : b.y + b.w, b.z] = True
    return filled


def best_overlap(built: NDArray[np.bool_], target: NDArray[np.bool_]) -> float:
    """Voxel IoU at the best shift in the plane: a caption does not say where to build."""
    layers = np.flatnonzero(built.any((0, 1)) & target.any((0, 1)))
    if len(layers) == 0:
        return 0.0
    span = 2 * built.shape[0]
    a = np.fft.rfft2(built[:, :, layers], (span, span), (0, 1))
    b = np.fft.rfft2(target[:, :, layers], (span, span), (0, 1))
    common = np.fft.irfft2((a * b.conj()).sum(2), (span, span), (0, 1))
    both = round(float(common.max()))
    return both / (int(built.sum()) + int(target.sum()) - both)
