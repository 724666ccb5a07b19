"""A painter for machines, standing or moving: back to front, with Pillow alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from coterie.worlds.machines.blocks import BLOCKS, BOULDER
from coterie.worlds.machines.bodies import machine_front
from coterie.worlds.machines.motion import Motion, record
from coterie.worlds.machines.solids import Color, Numbers, Solid, band_colors, resting, solids_of
from coterie.worlds.machines.terrain import DEPTH, RIDGE_RADIUS, Scene, boxes_of, ridges_of
from coterie.worlds.machines.tree import Machine

PAPER: Color = (255, 255, 255)
GROUND: Color = (226, 229, 222)
LINE: Color = (198, 203, 193)
TERRAIN: Color = (206, 196, 178)
INK: Color = (60, 60, 60)
# Seen from the right and above; forward is to the right of the picture.
AROUND, ABOVE = math.radians(28), math.radians(20)
RIGHT = np.array([math.cos(AROUND), math.sin(AROUND), 0.0])
TOWARDS = np.array([math.sin(AROUND) * math.cos(ABOVE), -math.cos(AROUND) * math.cos(ABOVE), math.sin(ABOVE)])
UP = np.cross(TOWARDS, RIGHT)
LIGHT = np.array([0.25, -0.5, 0.83])
OVERSAMPLING = 2
CORNERS = 24  # of a disc
STRIPE = 5.0  # m between marks on the ground


@dataclass(frozen=True)
class Camera:
    """What is in the middle of the picture and how many pixels a meter takes."""

    middle: Numbers  # [3]
    scale: float
    size: tuple[int, int]

    def at(self, points: Numbers) -> list[tuple[float, float]]:
        flat = np.atleast_2d(points) - self.middle
        u, v = self.size[0] / 2 + self.scale * (flat @ RIGHT), self.size[1] / 2 - self.scale * (flat @ UP)
        return list(zip(u.tolist(), v.tolist(), strict=True))


def look_at(points: Numbers, size: tuple[int, int], margin: float = 1.6) -> Camera:
    """A camera that sees all these points with something around them."""
    u, v = points @ RIGHT, points @ UP
    wide, high = np.ptp(u) + 2 * margin, np.ptp(v) + 2 * margin
    center = (u.max() + u.min()) / 2 * RIGHT + (v.max() + v.min()) / 2 * UP
    return Camera(center, min(size[0] / wide, size[1] / high), size)


def draw_machine(machine: Machine, size: int = 320) -> Image.Image:
    """A square picture of a machine as it stands at the start."""
    middles, ends = resting(machine)
    turns = np.broadcast_to(np.eye(3), (len(middles), 3, 3))
    large = (size * OVERSAMPLING, size * OVERSAMPLING)
    image = Image.new("RGB", large, PAPER)
    camera = look_at(np.concatenate([middles, middles * [1, 1, 0]]), large)
    pen = ImageDraw.Draw(image)
    _draw_ground(pen, camera, Scene(), 0.0)
    _draw_solids(pen, camera, solids_of(machine), middles, turns, ends, band_colors(machine))
    return image.resize((size, size), Image.Resampling.LANCZOS)


def draw_strip(machine: Machine, scene: Scene, count: int = 6, size: tuple[int, int] = (300, 220)) -> Image.Image:
    """Moments of a run side by side."""
    _, motion = record(machine, scene)
    rows = np.linspace(0, len(motion.times) - 1, count).round().astype(int)
    views = draw_moments(machine, scene, motion, rows.tolist(), size)
    strip = Image.new("RGB", (size[0] * count, size[1]), PAPER)
    for i, view in enumerate(views):
        strip.paste(view, (i * size[0], 0))
    return strip


def save_gif(
    machine: Machine, scene: Scene, path: Path, size: tuple[int, int] = (420, 280), every: float = 0.1
) -> None:
    """The run as an animation at its own speed."""
    _, motion = record(machine, scene, every)
    views = draw_moments(machine, scene, motion, range(len(motion.times)), size)
    frames = [view.quantize(32, dither=Image.Dither.NONE) for view in views]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=round(1000 * every), loop=0)


def draw_moments(
    machine: Machine, scene: Scene, motion: Motion, rows: Sequence[int], size: tuple[int, int]
) -> list[Image.Image]:
    """Pictures of some moments; the camera goes along, or stands back where something is thrown."""
    solids = solids_of(machine, bool(scene.load_mass))
    colors, front = band_colors(machine), machine_front(machine)
    large = (size[0] * OVERSAMPLING, size[1] * OVERSAMPLING)
    boulders = [s.body for s in solids if s.form == "ball" and s.size[0] == BLOCKS[BOULDER].size[0] / 2]
    fixed = look_at(motion.middles.reshape(-1, 3), large) if boulders else None
    subject = boulders[0] if boulders else -1 if scene.load_mass else 0  # whose way is told
    font = ImageFont.load_default(11 * OVERSAMPLING)
    pictures = []
    for row in rows:
        middles = motion.middles[row]
        here = middles[:1] + (motion.middles[0] - motion.middles[0, 0])
        camera = fixed or look_at(np.concatenate([here, here * [1, 1, 0]]), large)
        image = Image.new("RGB", large, PAPER)
        pen = ImageDraw.Draw(image)
        _draw_ground(pen, camera, scene, front)
        whole = motion.times[row] < motion.torn
        ends = motion.ends[row][whole]
        kept = [color for color, is_whole in zip(colors, whole, strict=True) if is_whole]
        _draw_solids(pen, camera, solids, middles, motion.turns[row], ends, kept)
        way = float(np.linalg.norm(middles[subject, :2] - motion.middles[0, subject, :2]))
        pen.text((8, 4), f"{motion.times[row]:.1f} s   {way:.1f} m", INK, font)
        pictures.append(image.resize(size, Image.Resampling.LANCZOS))
    return pictures


def _draw_ground(pen: ImageDraw.ImageDraw, camera: Camera, scene: Scene, front: float) -> None:
    """The ground with a line every few meters, then what stands on it."""
    x = float(camera.middle[0])
    near, far = x - 40, x + 40
    floor = -DEPTH if scene.terrain == "gap" else 0.0
    corners = [(near, -4, floor), (far, -4, floor), (far, 4, floor), (near, 4, floor)]
    pen.polygon(camera.at(np.array(corners)), GROUND)
    for mark in np.arange(math.ceil(near / STRIPE) * STRIPE, far, STRIPE):
        pen.line(camera.at(np.array([(mark, -4, floor), (mark, 4, floor)])), LINE, 2)
    faces = []
    for (start, stop), low, high in boxes_of(scene, front):
        start, stop = max(start, near), min(stop, far)
        if stop > start:
            half = ((stop - start) / 2, 4.0, (high - low) / 2)
            middle = np.array([(start + stop) / 2, 0.0, (low + high) / 2])
            faces += _box_faces(half, middle, np.eye(3), TERRAIN)
    lying = np.array([[1.0, 0.0, 0.0], [0.0, 0.0, 1.0], [0.0, -1.0, 0.0]])
    for place in ridges_of(scene, front):
        if near < place < far:
            middle = np.array([place, 0.0, scene.height - RIDGE_RADIUS])
            ridge = _disc_faces((RIDGE_RADIUS, RIDGE_RADIUS, 4.0), middle, lying, TERRAIN)
            faces += [face for face in ridge if face.points[:, 2].mean() > 0]
    _paint(pen, camera, faces)


@dataclass(frozen=True)
class _Face:
    points: NDArray[np.float64]  # [corners, 3]; a single one is the middle of a ball
    color: Color
    radius: float = 0.0

    @property
    def depth(self) -> float:
        return float(self.points.mean(0) @ TOWARDS)


def _draw_solids(
    pen: ImageDraw.ImageDraw,
    camera: Camera,
    solids: Sequence[Solid],
    middles: Numbers,
    turns: Numbers,
    ends: Numbers,
    colors: Sequence[Color],
) -> None:
    faces: list[_Face] = []
    for solid in solids:
        turn = turns[solid.body]
        middle, axes = middles[solid.body] + turn @ np.array(solid.offset), turn @ solid.axes
        if solid.form == "ball":
            faces.append(_Face(middle[None], solid.color, solid.size[0]))
        else:
            maker = _box_faces if solid.form == "box" else _disc_faces
            faces += maker(solid.size, middle, axes, solid.color)
    faces += [_Face(pair, color) for pair, color in zip(ends, colors, strict=True)]
    _paint(pen, camera, faces)


def _paint(pen: ImageDraw.ImageDraw, camera: Camera, faces: Sequence[_Face]) -> None:
    for face in sorted(faces, key=lambda face: face.depth):
        points = camera.at(face.points)
        if face.radius:
            [(u, v)], r = points, face.radius * camera.scale
            pen.ellipse((u - r, v - r, u + r, v + r), face.color, _shade(face.color, 0.5), 2)
            pen.ellipse((u - 0.5 * r, v - 0.65 * r, u, v - 0.15 * r), _shade(face.color, 1.25))
        elif len(points) == 2:
            pen.line(points, face.color, max(2, round(0.12 * camera.scale)))
        else:
            pen.polygon(points, face.color, _shade(face.color, 0.7))


def _box_faces(half: tuple[float, float, float], middle: Numbers, axes: Numbers, color: Color) -> list[_Face]:
    faces = []
    for axis in range(3):
        a, b = (axes[:, other] * half[other] for other in range(3) if other != axis)
        for sign in (1.0, -1.0):
            normal = sign * axes[:, axis]
            if normal @ TOWARDS > 0:
                center = middle + normal * half[axis]
                points = np.array([center + a + b, center - a + b, center - a - b, center + a - b])
                faces.append(_Face(points, _lit(color, normal)))
    return faces


def _disc_faces(size: tuple[float, float, float], middle: Numbers, axes: Numbers, color: Color) -> list[_Face]:
    radius, _, half = size
    angles = np.arange(CORNERS) * 2 * math.pi / CORNERS
    around = np.cos(angles)[:, None] * axes[:, 0] + np.sin(angles)[:, None] * axes[:, 1]
    rim, along = middle + radius * around, half * axes[:, 2]
    faces = []
    for i in range(CORNERS):
        normal = around[i] + around[i - 1]
        if normal @ TOWARDS > 0:
            points = np.array([rim[i] + along, rim[i - 1] + along, rim[i - 1] - along, rim[i] - along])
            faces.append(_Face(points, _lit(color, normal / np.linalg.norm(normal))))
    sign = 1.0 if axes[:, 2] @ TOWARDS > 0 else -1.0
    normal = sign * axes[:, 2]
    faces.append(_Face(rim + sign * along, _lit(color, normal)))
    # A pale wedge shows how the wheel turns.
    wedge = np.array([middle, middle + 0.8 * radius * around[0], middle + 0.8 * radius * around[2]])
    faces.append(_Face(wedge + sign * along + 1e-3 * normal, _shade(color, 1.6)))
    return faces


def _lit(color: Color, normal: Numbers) -> Color:
    return _shade(color, 0.72 + 0.36 * max(0.0, float(normal @ LIGHT)))


def _shade(color: Color, light: float) -> Color:
    r, g, b = (min(255, round(channel * light)) for channel in color)
    return r, g, b
