"""What a machine looks like: boxes, discs and balls with colors, block by block. No physics."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from coterie.worlds.machines.blocks import BLOCKS, BOULDER, CONTAINER, Form, Motion
from coterie.worlds.machines.bodies import FLOOR, LOAD, WALL, to_mujoco
from coterie.worlds.machines.frames import AXES, UNIT, face_of
from coterie.worlds.machines.tree import Machine

Numbers = NDArray[np.float64]
Color = tuple[int, int, int]

WOOD: Color = (196, 154, 100)
COLORS: dict[str, Color] = {
    "0": (201, 46, 38),
    "41": (222, 190, 140),
    "63": (160, 112, 66),
    "2": (70, 74, 82),
    "40": (150, 154, 160),
    "46": (70, 74, 82),
    "60": (150, 154, 160),
    "22": (30, 98, 178),
    "28": (80, 130, 190),
    "13": (80, 130, 190),
    "5": (41, 140, 74),
    "19": (41, 140, 74),
    "44": (41, 140, 74),
    "76": (41, 140, 74),
    "16": (110, 70, 140),
    "35": (96, 100, 104),
    "36": (128, 132, 136),
    "30": (214, 170, 92),
    "49": (60, 60, 60),
    "87": (230, 120, 150),
    "7": (120, 84, 50),
    "9": (235, 120, 34),
    "45": (90, 90, 90),
}
LOAD_COLOR: Color = (245, 191, 38)


class Solid(NamedTuple):
    """A box (half sides), disc (radius and half width along its last axis) or ball (radius) of a body."""

    form: str
    size: tuple[float, float, float]
    offset: tuple[float, float, float]  # from the body's middle, before the body turns
    axes: Numbers  # [3, 3] its own axes as columns, before the body turns
    color: Color
    body: int  # among those with volume


def solids_of(machine: Machine, with_load: bool = False) -> list[Solid]:
    """Every solid of the machine, in MuJoCo's axes; the load, if wanted, is the last body."""
    found: list[Solid] = []
    body = 0
    for part, place in zip(machine.parts, machine.places, strict=True):
        if place is None:
            continue
        block, color = BLOCKS[part.kind], COLORS.get(part.kind, WOOD)
        axes = np.array([to_mujoco(axis) for axis in AXES[place.facing]]).T  # right, up, front as columns
        sx, sy, sz = (side / 2 for side in block.size)
        if part.kind == BOULDER or block.form is Form.CASTER:
            found.append(Solid("ball", (min(sx, sy, sz),) * 3, (0.0, 0.0, 0.0), axes, color, body))
        elif block.form is Form.DISC or block.motion is Motion.SPIN:
            found.append(Solid("disc", (sx, sx, sz), (0.0, 0.0, 0.0), axes, color, body))
        elif part.kind == CONTAINER:
            found += [Solid("box", half, at, axes, color, body) for half, at in _bowl(axes, sx, sy, sz)]
        else:
            found.append(Solid("box", (sx, sy, sz), (0.0, 0.0, 0.0), axes, color, body))
        body += 1
    if with_load:
        found.append(Solid("box", (LOAD,) * 3, (0.0, 0.0, 0.0), np.eye(3), LOAD_COLOR, body))
    return found


Triple = tuple[float, float, float]


def _bowl(axes: Numbers, x: float, y: float, z: float) -> list[tuple[Triple, Triple]]:
    wall, high = WALL / 2, z - FLOOR / 2
    own: Sequence[tuple[Triple, Triple]] = (
        ((x, y, FLOOR / 2), (0.0, 0.0, FLOOR / 2 - z)),
        ((wall, y, high), (x - wall, 0.0, z - high)),
        ((wall, y, high), (wall - x, 0.0, z - high)),
        ((x - WALL, wall, high), (0.0, y - wall, z - high)),
        ((x - WALL, wall, high), (0.0, wall - y, z - high)),
    )
    placed = []
    for half, middle in own:
        a, b, c = (float(v) for v in axes @ np.array(middle))
        placed.append((half, (a, b, c)))
    return placed


def resting(machine: Machine) -> tuple[Numbers, Numbers]:
    """[bodies, 3] middles and [two-ended, 2, 3] ends at the start, the lowest point on the ground."""
    lift = np.array([0.0, 0.0, -min(place.low[1] for place in machine.places if place) / UNIT])
    middles = np.array([to_mujoco(place.middle) for place in machine.places if place]) + lift
    ends = []
    for part, place in zip(machine.parts, machine.places, strict=True):
        if place is None:
            pair = ((part.parent, part.face), (part.parent_b, part.face_b))
            ends.append([_face_point(machine, parent, face) + lift for parent, face in pair])
    return middles, np.array(ends).reshape(-1, 2, 3)


def _face_point(machine: Machine, parent: int, face: int) -> Numbers:
    place = machine.places[parent]
    assert place is not None
    return np.array(to_mujoco(face_of(machine.parts[parent].kind, place, face)[0])) / UNIT


def band_colors(machine: Machine) -> list[Color]:
    """Of the two-ended blocks, in order."""
    return [COLORS[p.kind] for p, place in zip(machine.parts, machine.places, strict=True) if place is None]
