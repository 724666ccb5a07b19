"""What captions ask for: a family of parametrized shapes, each with its words and its voxels."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import product

import numpy as np
from numpy.typing import NDArray

Voxels = NDArray[np.bool_]  # [x, y, z]

# Letters as seen from the front, drawn on a grid of thirds: rows from the top.
LETTERS = {
    "C": ("###", "#..", "#..", "#..", "###"),
    "E": ("###", "#..", "###", "#..", "###"),
    "F": ("###", "#..", "###", "#..", "#.."),
    "H": ("#.#", "#.#", "###", "#.#", "#.#"),
    "I": ("###", ".#.", ".#.", ".#.", "###"),
    "L": ("#..", "#..", "#..", "#..", "###"),
    "O": ("###", "#.#", "#.#", "#.#", "###"),
    "P": ("###", "#.#", "###", "#..", "#.."),
    "T": ("###", ".#.", ".#.", ".#.", ".#."),
    "U": ("#.#", "#.#", "#.#", "#.#", "###"),
}


def _empty(wide: int, deep: int, tall: int) -> Voxels:
    return np.zeros((wide, deep, tall), np.bool_)


def _legs(v: Voxels, height: int) -> None:
    """A leg under each corner, two studs thick where there is room."""
    wide, deep, _ = v.shape
    a, b = (2 if wide >= 6 else 1), (2 if deep >= 6 else 1)
    for x, y in product((slice(0, a), slice(wide - a, wide)), (slice(0, b), slice(deep - b, deep))):
        v[x, y, :height] = True


def table(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    _legs(v, tall - 2)
    v[:, :, tall - 2 :] = True
    return v


def chair(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    seat = tall // 2
    _legs(v, seat)
    v[:, :, seat - 1 : seat + 1] = True
    v[:, -1, seat:] = True
    return v


def stool(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    x, y = (wide - 2) // 2, (deep - 2) // 2
    v[x : x + 2, y : y + 2, : tall - 1] = True
    v[:, :, tall - 2 :] = True
    return v


def bench(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[:2] = v[-2:] = True
    v[:, :, : tall - 2] &= (np.arange(wide) < 2)[:, None, None] | (np.arange(wide) >= wide - 2)[:, None, None]
    v[:, :, tall - 2 :] = True
    return v


def sofa(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[:, :, :2] = True
    v[:, -1, :] = True
    v[[0, -1], :, : tall - 1] = True
    return v


def bed(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[:, :, :2] = True
    v[0] = True
    v[-1, :, : tall - 1] = True
    return v


def wall(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[...] = True
    return v


def door_wall(wide: int, deep: int, tall: int) -> Voxels:
    v = wall(wide, deep, tall)
    left = (wide - 2) // 2
    v[left : left + 2, :, : tall - 2] = False
    return v


def window_wall(wide: int, deep: int, tall: int) -> Voxels:
    v = wall(wide, deep, tall)
    left = (wide - 2) // 2
    v[left : left + 2, :, 2 : tall - 2] = False
    return v


def bridge(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[:, :, tall - 2 :] = True
    v[:3, :, :] = v[-3:, :, :] = True
    return v


def gate(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[:2] = v[-2:] = True
    v[1:-1, :, tall - 3 : tall - 1] = True
    return v


def stairs(wide: int, deep: int, tall: int) -> Voxels:
    x, z = np.arange(wide)[:, None, None], np.arange(tall)[None, None, :]
    return np.broadcast_to(z * wide < (x + 1) * tall, (wide, deep, tall)).copy()


def tower(wide: int, deep: int, tall: int) -> Voxels:
    return wall(wide, deep, tall)


def pyramid(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    for z in range(tall):
        v[z : wide - z, z : deep - z, z] = True
    return v


def tree(wide: int, deep: int, tall: int) -> Voxels:
    v = stool(wide, deep, tall)
    x, y = (wide - 2) // 2, (deep - 2) // 2
    v[:, :, tall - 3 :] = True
    v[:, :, -1] = False
    v[x : x + 2, y : y + 2, -1] = True
    return v


def box(wide: int, deep: int, tall: int) -> Voxels:
    v = wall(wide, deep, tall)
    v[1:-1, 1:-1, 1:] = False
    return v


def shelf(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[[0, -1]] = True
    v[:, :, 0] = v[:, :, tall // 2] = v[:, :, -1] = True
    return v


def fence(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    v[::3] = v[-1] = True
    v[:, :, 1] = v[:, :, -2] = True
    return v


def cross(wide: int, deep: int, tall: int) -> Voxels:
    v = _empty(wide, deep, tall)
    x = (wide - 2) // 2
    v[x : x + 2] = True
    v[:, :, tall - 3 : tall - 1] = True
    return v


def letter(name: str) -> Callable[[int, int, int], Voxels]:
    def draw(wide: int, deep: int, tall: int) -> Voxels:
        rows = np.array([[c == "#" for c in row] for row in LETTERS[name]])
        # Strokes keep one cell; what lies between them stretches.
        across = np.digitize(np.arange(wide), [1, wide - 1])
        up = np.digitize(np.arange(tall), [1, (tall - 1) // 2, (tall - 1) // 2 + 1, tall - 1])
        front = rows[::-1][np.ix_(up, across)].T  # [x, z]
        if name in "IT":
            front[:, 1:-1] = False
            x = (wide - 1) // 2
            front[x : x + 2, :] = True
            front[:, -1] = True
            if name == "I":
                front[:, 0] = True
        return np.broadcast_to(front[:, None, :], (wide, deep, tall)).copy()

    return draw


@dataclass(frozen=True)
class Kind:
    """One kind of shape: its words, its voxels and the sizes it comes in."""

    phrase: str
    draw: Callable[[int, int, int], Voxels]
    wide: range
    deep: range
    tall: range
    # Held out entirely, so that the figures also say how well sizes never seen come out.
    unseen_wide: range = range(0)


def _kind(phrase: str, draw: Callable[[int, int, int], Voxels], *ranges: tuple[int, int], unseen: int = 0) -> Kind:
    wide, deep, tall = (range(a, b + 1) for a, b in ranges)
    return Kind(phrase, draw, wide, deep, tall, range(unseen, wide.stop) if unseen else range(0))


KINDS: dict[str, Kind] = {
    "table": _kind("a table", table, (4, 10), (3, 8), (3, 6), unseen=10),
    "chair": _kind("a chair", chair, (3, 6), (3, 6), (4, 9)),
    "stool": _kind("a stool", stool, (4, 6), (4, 6), (3, 8)),
    "bench": _kind("a bench", bench, (6, 14), (2, 4), (3, 5), unseen=13),
    "sofa": _kind("a sofa", sofa, (4, 10), (3, 5), (4, 6), unseen=10),
    "bed": _kind("a bed", bed, (5, 10), (3, 6), (3, 5)),
    "wall": _kind("a wall", wall, (4, 14), (1, 2), (3, 7), unseen=13),
    "door": _kind("a wall with a door", door_wall, (6, 12), (1, 2), (4, 8)),
    "window": _kind("a wall with a window", window_wall, (6, 12), (1, 2), (5, 8)),
    "bridge": _kind("a bridge", bridge, (7, 14), (2, 4), (3, 6), unseen=14),
    "gate": _kind("a gate", gate, (6, 10), (1, 3), (5, 9)),
    "stairs": _kind("stairs", stairs, (3, 8), (2, 4), (3, 7)),
    "tower": _kind("a tower", tower, (2, 5), (2, 5), (4, 12)),
    "pyramid": _kind("a pyramid", pyramid, (6, 10), (6, 10), (2, 3)),
    "tree": _kind("a tree", tree, (4, 7), (4, 7), (5, 9)),
    "box": _kind("a box", box, (4, 9), (4, 9), (2, 5)),
    "shelf": _kind("a shelf", shelf, (4, 8), (2, 4), (5, 9)),
    "fence": _kind("a fence", fence, (7, 16), (1, 2), (3, 5), unseen=15),
    "cross": _kind("a cross", cross, (6, 8), (2, 3), (6, 10)),
    **{f"letter {c}": _kind(f"the letter {c}", letter(c), (4, 8), (1, 2), (5, 9)) for c in LETTERS},
}


@dataclass(frozen=True)
class Shape:
    """A kind at one size."""

    kind: str
    wide: int
    deep: int
    tall: int

    @property
    def captions(self) -> tuple[str, ...]:
        """Ways to ask for it."""
        phrase = KINDS[self.kind].phrase
        return (
            f"{phrase} {self.wide} wide {self.deep} deep {self.tall} tall",
            f"{phrase} of {self.wide} by {self.deep} studs {self.tall} tall",
        )

    @property
    def heldout(self) -> bool:
        """Sizes out of the training range, and a fixed eighth of all others."""
        draw = hashlib.sha256(self.captions[0].encode()).digest()[0]
        return self.wide in KINDS[self.kind].unseen_wide or draw % 8 == 0

    def voxels(self) -> Voxels:
        return KINDS[self.kind].draw(self.wide, self.deep, self.tall)


def all_shapes() -> Iterator[Shape]:
    """Every shape of the family, kind by kind."""
    for name, kind in KINDS.items():
        for sizes in product(kind.wide, kind.deep, kind.tall):
            yield Shape(name, *sizes)


@lru_cache(maxsize=4096)
def target_of(shape: Shape, world_dim: int) -> Voxels:
    """The shape's voxels in the corner of the world; read only."""
    target = _empty(world_dim, world_dim, world_dim)
    v = shape.voxels()
    target[: v.shape[0], : v.shape[1], : v.shape[2]] = v
    target.flags.writeable = False
    return target
