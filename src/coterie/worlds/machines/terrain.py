"""What a machine stands on: the ground with ridges, a step or a gap, the slope, and what it has to bear."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

GRAVITY = 9.81
FAR = 120.0  # how far the world goes, in meters
DEPTH = 3.0  # of a gap
RIDGES, RIDGE_SPACING, RIDGE_RADIUS = 16, 2.5, 0.6


@dataclass(frozen=True)
class Scene:
    """Lengths in meters. The terrain begins `ahead` meters before the machine's foremost point."""

    terrain: str = "flat"  # flat, ridges, step, gap, or none: nothing to stand on
    height: float = 0.0  # of the ridges or the step
    width: float = 0.0  # of the gap
    ahead: float = 3.0
    slope: float = 0.0  # degrees uphill
    extra_mass: float = 0.0  # kg in the starting block
    load_mass: float = 0.0  # kg of a box that lies on the machine; 0: none
    boulder_mass: float = 0.0  # kg; 0: the table's

    @property
    def gravity_vector(self) -> list[float]:
        """A slope is gravity that leans back: the ground stays level, which is simpler and the same."""
        angle = math.radians(self.slope)
        return [-GRAVITY * math.sin(angle), 0.0, -GRAVITY * math.cos(angle)]


def boxes_of(scene: Scene, front: float) -> list[tuple[tuple[float, float], float, float]]:
    """The boxes of a terrain: (from, to) along the way, bottom and top."""
    edge = front + scene.ahead
    if scene.terrain == "step":
        return [((edge, edge + FAR), 0.0, scene.height)]
    if scene.terrain == "gap":
        return [((-FAR, edge), -DEPTH, 0.0), ((edge + scene.width, edge + scene.width + FAR), -DEPTH, 0.0)]
    return []


def ridges_of(scene: Scene, front: float) -> list[float]:
    """Where along the way the ridges lie."""
    if scene.terrain != "ridges":
        return []
    return [front + scene.ahead + i * RIDGE_SPACING for i in range(RIDGES)]


def add_terrain(mujoco: Any, spec: Any, scene: Scene, front: float) -> None:
    """Put the terrain into the spec."""
    world, kinds = spec.worldbody, mujoco.mjtGeom
    if scene.terrain == "none":
        return
    floor = -DEPTH if scene.terrain == "gap" else 0.0
    world.add_geom(name="ground", type=kinds.mjGEOM_PLANE, size=[FAR, FAR, 1.0], pos=[0.0, 0.0, floor])
    for i, ((start, stop), low, high) in enumerate(boxes_of(scene, front)):
        half, middle = [(stop - start) / 2, FAR / 2, (high - low) / 2], [(start + stop) / 2, 0.0, (low + high) / 2]
        world.add_geom(name=f"terrain{i}", type=kinds.mjGEOM_BOX, size=half, pos=middle)
    for i, x in enumerate(ridges_of(scene, front)):
        lying = [0.5**0.5, 0.5**0.5, 0.0, 0.0]
        size, pos = [RIDGE_RADIUS, FAR / 4, 0.0], [x, 0.0, scene.height - RIDGE_RADIUS]
        world.add_geom(name=f"ridge{i}", type=kinds.mjGEOM_CYLINDER, size=size, pos=pos, quat=lying)
