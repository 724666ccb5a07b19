"""The blocks: sizes, faces, masses, how they move, what they hold. Data, in BesiegeField's numbering.

Sizes and places are in meters, in the block's own frame: x to its right, y up, z to its front. A block
begins at z = 0, where it is attached; only the starting block has its middle there.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Vector = tuple[float, float, float]


class Motion(StrEnum):
    """How a block moves against the one that carries it."""

    RIGID = "rigid"
    WHEEL = "wheel"  # spins about its front axis; a motor, where it has one, drives forward
    SPIN = "spin"  # the same, but the motor's sense goes with the facing
    SWING = "swing"  # about its right axis: up and down
    TURN = "turn"  # about its up axis: left and right
    BALL = "ball"
    SLIDE = "slide"  # along its front axis, on a spring
    FREE = "free"  # lies where it was put, and is held by nothing
    STRUT = "strut"  # two-ended: keeps its length
    BAND = "band"  # two-ended: pulls its ends together
    ROPE = "rope"  # two-ended: never longer than at the start


class Form(StrEnum):
    """What touches others."""

    BOX = "box"
    DISC = "disc"  # about the front axis
    BALL = "ball"
    CASTER = "caster"  # a ball without friction
    BOWL = "bowl"  # a bottom and four walls


@dataclass(frozen=True)
class Face:
    """Where another block can be attached."""

    place: Vector
    direction: str  # front, back, left, right, up or down


@dataclass(frozen=True)
class Block:
    """One kind of block. `force` (N) and `torque` (N m) are what its attachment bears before it breaks."""

    id: str
    name: str
    mass: float
    size: Vector = (1.0, 1.0, 1.0)
    faces: tuple[Face, ...] = ()
    motion: Motion = Motion.RIGID
    form: Form = Form.BOX
    force: float = 3000.0
    torque: float = 3000.0
    speed: float = 0.0  # of the motor, rad/s
    power: float = 0.0  # its greatest torque, N m
    stiffness: float = 0.0  # N/m
    damping: float = 0.0
    friction: float = 1.0
    bounce: bool = False

    @property
    def two_ended(self) -> bool:
        return self.motion in (Motion.STRUT, Motion.BAND, Motion.ROPE)


SIDES = {"left": (-1, 0), "right": (1, 0), "up": (0, 1), "down": (0, -1)}


def _faces(length: float, *rows: float, reach: float = 0.5) -> tuple[Face, ...]:
    """The front, then each side's faces from back to front."""
    sides = [Face((x * reach, y * reach, z), side) for side, (x, y) in SIDES.items() for z in rows]
    return (Face((0.0, 0.0, length), "front"), *sides)


_CUBE = _faces(1.0, 0.5)
_ROOT = (
    Face((0.0, 0.0, 0.5), "front"),
    Face((0.0, 0.0, -0.5), "back"),
    *(Face((x * 0.5, y * 0.5, 0.0), side) for side, (x, y) in SIDES.items()),
)
_RIM = tuple(Face((x * 1.5, y * 1.5, 1.0), "front") for x, y in SIDES.values())
_LARGE = (Face((0.0, 0.0, 1.0), "front"), *_RIM, *_faces(1.0, 0.5, reach=1.5)[1:])

_TABLE = (
    Block("0", "starting block", 0.25, faces=_ROOT),
    Block("15", "small wooden block", 0.3, faces=_CUBE),
    Block("1", "wooden block", 0.5, (1, 1, 2), _faces(2.0, 0.5, 1.5)),
    Block("41", "wooden rod", 0.5, (1, 1, 2), _faces(2.0, 0.5, 1.5), force=1200.0, torque=900.0),
    Block("63", "log", 1.0, (1, 1, 3), _faces(3.0, 0.5, 1.5, 2.5)),
    Block("28", "steering hinge", 1.0, faces=_CUBE[:1], motion=Motion.TURN, power=100.0),
    Block("13", "steering block", 1.0, faces=_CUBE, motion=Motion.SPIN, power=100.0),
    Block("2", "powered wheel", 1.0, (2, 2, 0.5), _faces(0.5), Motion.WHEEL, Form.DISC, speed=12.0, power=5.0),
    Block("40", "unpowered wheel", 1.0, (2, 2, 0.5), _faces(0.5), Motion.WHEEL, Form.DISC),
    Block("46", "large powered wheel", 1.0, (3, 3, 1), _LARGE, Motion.WHEEL, Form.DISC, speed=12.0, power=12.0),
    Block("60", "large unpowered wheel", 1.0, (3, 3, 1), _LARGE, Motion.WHEEL, Form.DISC),
    Block("50", "small wheel", 0.5, (0.5, 1, 1.5), form=Form.CASTER),
    Block("86", "roller wheel", 0.5, form=Form.CASTER),
    Block("19", "universal joint", 0.5, faces=_CUBE, motion=Motion.SPIN),
    Block("5", "hinge", 0.5, faces=_CUBE, motion=Motion.SWING),
    Block("44", "ball joint", 0.5, faces=_CUBE, motion=Motion.BALL),
    Block("76", "axle connector", 0.3, faces=_CUBE[:1], motion=Motion.BALL),
    Block("22", "rotating block", 1.0, faces=_CUBE, motion=Motion.SPIN, speed=6.0, power=250.0),
    Block("27", "grabber", 0.5, faces=_CUBE[:1], friction=2.0),
    Block("36", "boulder", 5.0, (1.9, 1.9, 1.9), motion=Motion.FREE, form=Form.BALL),
    Block("49", "grip pad", 0.3, (0.8, 0.8, 0.2), friction=2.0),
    Block("87", "elastic pad", 0.3, (0.8, 0.8, 0.2), bounce=True),
    Block("30", "container", 0.5, (2.4, 3.0, 2.8), _CUBE[:1], form=Form.BOWL),
    Block("16", "suspension", 0.5, (1, 1, 2), _faces(2.0, 1.5), Motion.SLIDE, stiffness=500.0, damping=40.0),
    Block("7", "brace", 0.5, motion=Motion.STRUT, force=4000.0),
    Block("9", "rubber band", 0.4, motion=Motion.BAND, force=4000.0, stiffness=300.0, damping=5.0),
    Block("35", "ballast", 3.0, faces=_CUBE),
    Block("4", "decoupler", 0.5, faces=_CUBE),
    Block("45", "winch", 0.5, motion=Motion.ROPE, force=2000.0),
)
BLOCKS = {block.id: block for block in _TABLE}
ROOT, CONTAINER, BOULDER = "0", "30", "36"

CAR_LEVEL = frozenset({"0", "1", "2", "9", "15", "16", "22", "35", "41", "63"})
CATAPULT_LEVEL = CAR_LEVEL | {"5", "7", "30", "36"}
