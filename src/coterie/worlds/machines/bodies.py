"""From a construction tree to MuJoCo: one body a block, jointed where the block moves.

Besiege's axes (x right, y up, z forward) become MuJoCo's (x forward, y left, z up).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from coterie.extras import require
from coterie.worlds.machines.blocks import BLOCKS, BOULDER, CONTAINER, Block, Form, Motion, Vector
from coterie.worlds.machines.frames import AXES, FACINGS, UNIT, Place, face_of
from coterie.worlds.machines.terrain import Scene, add_terrain
from coterie.worlds.machines.tree import Machine, Part

# What touches others is this much smaller than the block on every side, so that neighbors do not rub.
GAP = 0.01
WALL, FLOOR = 0.2, 1.0  # of a container
PLAY = 0.01  # of a brace's length
REST = 0.25  # of a rubber band's length: where it stops pulling
TRAVEL = 0.4  # of a suspension, each way
MOTOR_SLACK = 0.25  # a motor gives its full torque until it is this share of its speed short of it
SLOW = 1.0  # rad/s: how fast a held joint gives way under its full torque
ROLLING = 0.05  # resistance of a boulder, m
LOAD = 0.45  # half the side of what is to be carried
ROOT_NAME, LOAD_NAME = "block0", "load"


@cache
def load_mujoco() -> Any:
    """MuJoCo, told to keep its warnings to itself: they are read from the data, and would go to a file in the way."""
    mujoco = require("mujoco", "machines")
    mujoco.set_mju_user_warning(lambda message: None)
    return mujoco


def to_mujoco(v: Any) -> tuple[float, float, float]:
    """A place or direction in MuJoCo's axes."""
    return float(v[2]), -float(v[0]), float(v[1])


def name_of(number: int) -> str:
    return f"block{number}"


@dataclass(frozen=True)
class Built:
    """A compiled machine; `watched` are the parts whose attachments are measured, in the order of the sensors."""

    spec: Any
    model: Any
    watched: tuple[int, ...]
    limits: np.ndarray[Any, np.dtype[np.float64]]  # [watched, 2]: force and torque


def build(machine: Machine, scene: Scene, broken: Collection[int] = (), dt: float = 0.005) -> Built:
    """The machine on its terrain, resting on its lowest point; parts in `broken` have come loose."""
    mujoco = load_mujoco()
    spec = mujoco.MjSpec()
    spec.option.timestep = dt
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.gravity = scene.gravity_vector
    # A jointed part may hit what carries it; parts without a joint between them are never tested. One machine is
    # one island, and looking for more costs time.
    off = mujoco.mjtDisableBit
    spec.option.disableflags = int(off.mjDSBL_FILTERPARENT) | int(getattr(off, "mjDSBL_ISLAND", 0))
    maker = _Maker(mujoco, spec, machine, scene, frozenset(broken))
    add_terrain(mujoco, spec, scene, machine_front(machine))
    for number in range(len(machine.parts)):
        maker.add(number)
    if scene.load_mass:
        maker.add_load()
    for number in maker.watched:
        maker.add_sensors(number)
    limits = [(BLOCKS[machine.parts[i].kind].force, BLOCKS[machine.parts[i].kind].torque) for i in maker.watched]
    return Built(spec, spec.compile(), tuple(maker.watched), np.array(limits).reshape(-1, 2))


def machine_front(machine: Machine) -> float:
    """How far its foremost point is before the middle of the starting block, in meters."""
    return max(place.high[2] for place in machine.places if place) / UNIT


def _lowest(machine: Machine) -> float:
    return min(place.low[1] for place in machine.places if place) / UNIT


class _Maker:
    """Adds the blocks of one machine to one spec."""

    def __init__(self, mujoco: Any, spec: Any, machine: Machine, scene: Scene, broken: frozenset[int]) -> None:
        self.mujoco, self.spec, self.machine, self.scene, self.broken = mujoco, spec, machine, scene, broken
        self.bodies: dict[int, Any] = {}
        self.watched: list[int] = []
        self.lift = (0.0, 0.0, -_lowest(machine))

    def add(self, number: int) -> None:
        part = self.machine.parts[number]
        block, place = BLOCKS[part.kind], self.machine.places[number]
        if place is None:
            self._add_two_ended(number, part, block)
            return
        loose = number == 0 or number in self.broken or block.motion is Motion.FREE
        middle = np.array(to_mujoco(place.middle))
        if loose:
            body = self.spec.worldbody.add_body(name=name_of(number), pos=middle + self.lift)
            body.add_freejoint(name=name_of(number))
        else:
            carrier = self.machine.places[part.parent]
            assert carrier is not None
            offset = middle - to_mujoco(carrier.middle)
            body = self.bodies[part.parent].add_body(name=name_of(number), pos=offset)
            self._add_joint(body, number, block, place)
            base = np.array(to_mujoco(place.base)) / UNIT - middle
            body.add_site(name=name_of(number), pos=base)
            self.watched.append(number)
        self._add_geoms(body, number, block, place)
        self.bodies[number] = body

    def _add_joint(self, body: Any, number: int, block: Block, place: Place) -> None:
        right, up, front = (to_mujoco(axis) for axis in AXES[place.facing])
        kinds = self.mujoco.mjtJoint
        common = {"name": name_of(number), "damping": 0.02, "armature": 0.01}
        if block.motion in (Motion.WHEEL, Motion.SPIN):
            # A wheel to the left is turned round, so that wheels on both sides drive forward.
            flipped = block.motion is Motion.WHEEL and FACINGS[place.facing] == "x-"
            sense = 1.0 if flipped else -1.0
            body.add_joint(type=kinds.mjJNT_HINGE, axis=[sense * a for a in front], **common)
        elif block.motion is Motion.SWING:
            body.add_joint(type=kinds.mjJNT_HINGE, axis=right, limited=1, range=[-90, 90], **common)
        elif block.motion is Motion.TURN:
            body.add_joint(type=kinds.mjJNT_HINGE, axis=up, limited=1, range=[-90, 90], **common)
        elif block.motion is Motion.BALL:
            body.add_joint(type=kinds.mjJNT_BALL, **common)
        elif block.motion is Motion.SLIDE:
            spring = {"stiffness": block.stiffness, "damping": block.damping}
            body.add_joint(type=kinds.mjJNT_SLIDE, axis=front, limited=1, range=[-TRAVEL, TRAVEL], **common | spring)
        if block.power:
            self._add_motor(number, block)

    def _add_motor(self, number: int, block: Block) -> None:
        """Torque towards the block's speed, never more than its power; no control is needed."""
        gain = block.power / (MOTOR_SLACK * block.speed or SLOW)
        motor = self.spec.add_actuator(name=name_of(number), target=name_of(number))
        motor.trntype = self.mujoco.mjtTrn.mjTRN_JOINT
        motor.biastype = self.mujoco.mjtBias.mjBIAS_AFFINE
        motor.gainprm = [0.0] * 10
        motor.biasprm = [gain * block.speed, 0.0, -gain] + [0.0] * 7
        motor.forcelimited, motor.forcerange = 1, [-block.power, block.power]

    def _add_geoms(self, body: Any, number: int, block: Block, place: Place) -> None:
        extra = self.scene.extra_mass if number == 0 else 0.0
        mass = self.scene.boulder_mass if block.id == BOULDER and self.scene.boulder_mass else block.mass
        forms = list(self._forms(block, place))
        for i, (kind, size, offset) in enumerate(forms):
            geom = body.add_geom(name=f"{name_of(number)}.{i}", type=kind, size=size, pos=offset)
            geom.mass = mass / len(forms) + extra
            geom.friction = [block.friction, 0.005, 0.0001]
            if kind == self.mujoco.mjtGeom.mjGEOM_CYLINDER:
                geom.quat = _QUATS[FACINGS[place.facing][0]]
            if block.form is Form.BALL:
                geom.condim, geom.friction = 6, [block.friction, 0.01, ROLLING]
            if block.form is Form.CASTER:
                geom.condim, geom.priority = 1, 1
            if block.bounce:
                geom.solref, geom.priority = [-20000.0, -20.0], 1

    def _forms(self, block: Block, place: Place) -> Iterator[tuple[Any, list[float], tuple[float, float, float]]]:
        """Shapes with their half sizes and where they lie from the block's middle."""
        kinds = self.mujoco.mjtGeom
        front = np.array(to_mujoco(AXES[place.facing, 2]))
        half = np.array([(h - v) / (2 * UNIT) for v, h in zip(place.low, place.high, strict=True)])
        box = np.abs(to_mujoco(half))
        sx, _, sz = block.size
        middle = (0.0, 0.0, 0.0)
        if block.id == CONTAINER:
            yield from _bowl(kinds.mjGEOM_BOX, block, place)
        elif block.form is Form.DISC:
            yield kinds.mjGEOM_CYLINDER, [sx / 2, sz / 2 - 2 * GAP, 0.0], middle
        elif block.form is Form.BALL:
            yield kinds.mjGEOM_SPHERE, [sx / 2, 0.0, 0.0], middle
        elif block.form is Form.CASTER:
            radius = min(block.size) / 2
            x, y, z = front * (sz / 2 - radius)
            yield kinds.mjGEOM_SPHERE, [radius, 0.0, 0.0], (x, y, z)
        elif block.motion is Motion.SPIN:
            yield kinds.mjGEOM_CYLINDER, [sx / 2 - 2 * GAP, sz / 2 - 2 * GAP, 0.0], middle
        elif block.motion in (Motion.SWING, Motion.TURN, Motion.BALL):
            yield kinds.mjGEOM_SPHERE, [sx / 2 - 2 * GAP, 0.0, 0.0], middle
        elif block.motion is Motion.SLIDE:  # its far half moves; the near half is where it moves to
            x, y, z = front * sz / 4
            yield kinds.mjGEOM_BOX, list(box - np.abs(front) * sz / 4 - GAP), (x, y, z)
        else:
            yield kinds.mjGEOM_BOX, list(box - GAP), middle

    def _add_two_ended(self, number: int, part: Part, block: Block) -> None:
        ends = []
        for end, (parent, face) in enumerate(((part.parent, part.face), (part.parent_b, part.face_b))):
            carrier = self.machine.places[parent]
            assert carrier is not None
            point = np.array(face_of(self.machine.parts[parent].kind, carrier, face)[0]) / UNIT
            ends.append(point)
            pos = np.array(to_mujoco(point)) - to_mujoco(carrier.middle)
            body, name = self.bodies[parent], f"{name_of(number)}.{end}"
            body.add_site(name=name, pos=pos)
            tip = body.add_geom(name=name, type=self.mujoco.mjtGeom.mjGEOM_SPHERE, size=[0.1, 0, 0], pos=pos)
            tip.mass, tip.contype, tip.conaffinity = block.mass / 2, 0, 0
        if number in self.broken:
            return
        length = float(np.linalg.norm(ends[1] - ends[0]))
        how: dict[str, Any]
        if block.motion is Motion.BAND:
            how = {"stiffness": block.stiffness, "damping": block.damping, "springlength": [0.0, REST * length]}
        else:
            shortest = max(length - PLAY, 0.0) if block.motion is Motion.STRUT else 0.0
            how = {"limited": 1, "range": [shortest, length + PLAY]}
        tendon = self.spec.add_tendon(name=name_of(number), **how)
        for end in range(2):
            tendon.wrap_site(f"{name_of(number)}.{end}")
        self.watched.append(number)

    def add_load(self) -> None:
        """A free box on the highest block above the middle of the starting block."""
        reach = round(LOAD * UNIT)
        tops = [
            p.high[1]
            for p in self.machine.places
            if p and p.low[0] < reach and p.high[0] > -reach and p.low[2] < reach and p.high[2] > -reach
        ]
        height = max(tops) / UNIT + LOAD + GAP
        body = self.spec.worldbody.add_body(name=LOAD_NAME, pos=np.array([0.0, 0.0, height]) + self.lift)
        body.add_freejoint(name=LOAD_NAME)
        geom = body.add_geom(name=LOAD_NAME, type=self.mujoco.mjtGeom.mjGEOM_BOX, size=[LOAD] * 3)
        geom.mass = self.scene.load_mass

    def add_sensors(self, number: int) -> None:
        """Six numbers an attachment; of two-ended ones the tension only."""
        kinds, name = self.mujoco.mjtSensor, name_of(number)
        if self.machine.places[number] is None:
            kind = kinds.mjSENS_TENDONPOS if self._is_band(number) else kinds.mjSENS_TENDONLIMITFRC
            self.spec.add_sensor(name=name, type=kind, objtype=self.mujoco.mjtObj.mjOBJ_TENDON, objname=name)
            return
        for kind, ending in ((kinds.mjSENS_FORCE, "force"), (kinds.mjSENS_TORQUE, "torque")):
            target = {"objtype": self.mujoco.mjtObj.mjOBJ_SITE, "objname": name}
            self.spec.add_sensor(name=f"{name}.{ending}", type=kind, **target)

    def _is_band(self, number: int) -> bool:
        return BLOCKS[self.machine.parts[number].kind].motion is Motion.BAND


# Turns of a cylinder, whose axis is MuJoCo's z, to lie along Besiege's axes.
_HALF = 0.5**0.5
_QUATS = {"y": (1.0, 0.0, 0.0, 0.0), "z": (_HALF, 0.0, _HALF, 0.0), "x": (_HALF, _HALF, 0.0, 0.0)}


def _bowl(kind: Any, block: Block, place: Place) -> Iterator[tuple[Any, list[float], tuple[float, float, float]]]:
    """A thick bottom and four walls."""
    x, y, z = (side / 2 for side in block.size)
    wall, high = WALL / 2, (2 * z - FLOOR) / 2
    own: tuple[tuple[Vector, Vector], ...] = (  # half sizes, and the middle from the block's middle
        ((x, y, FLOOR / 2), (0.0, 0.0, FLOOR / 2 - z)),
        ((wall, y, high), (x - wall, 0.0, z - high)),
        ((wall, y, high), (wall - x, 0.0, z - high)),
        ((x - WALL, wall, high), (0.0, y - wall, z - high)),
        ((x - WALL, wall, high), (0.0, wall - y, z - high)),
    )
    for half, middle in own:
        size = np.abs(to_mujoco(np.array(half) @ AXES[place.facing]))
        yield kind, list(size - GAP), to_mujoco(np.array(middle) @ AXES[place.facing])
