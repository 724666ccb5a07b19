"""An isometric painter: x to the right, y away, z up, back to front."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from coterie.worlds.bricks.stability import Verdict
from coterie.worlds.bricks.structure import Brick

Point = tuple[float, float]
Color = tuple[int, int, int]
Legend = Sequence[tuple[Color, str]]

PALETTE: tuple[Color, ...] = (
    (201, 46, 38),
    (30, 98, 178),
    (245, 191, 38),
    (41, 140, 74),
    (235, 120, 34),
    (120, 190, 214),
    (232, 232, 226),
    (110, 70, 140),
)
PLATE: Color = (214, 216, 210)
PAPER: Color = (255, 255, 255)
# Most bricks carry little, so the colors change fastest at small loads.
LOAD_COLORS: dict[float, Color] = {
    0.0: (41, 140, 74),
    0.1: (160, 195, 50),
    0.25: (245, 191, 38),
    0.5: (235, 120, 34),
    1.0: (201, 46, 38),
}
FLOATING: Color = (200, 60, 170)
UNKNOWN: Color = (160, 165, 169)
LOAD_LEGEND: Legend = (
    *((color, f"{load:.0%}" if load < 1.0 else "fails") for load, color in LOAD_COLORS.items()),
    (FLOATING, "floats"),
    (UNKNOWN, "not known"),
)
TURN, TILT = math.radians(30), math.radians(28)
BRICK_HEIGHT = 9.6 / 7.8  # in studs
STUD_RADIUS, STUD_HEIGHT = 0.3, 0.2
OVERSAMPLING = 3


def color_by_brick(index: int) -> Color:
    """Neighbors in building order differ."""
    return PALETTE[index % len(PALETTE)]


def color_by_layer(bricks: Sequence[Brick]) -> Callable[[int], Color]:
    """One color a layer."""
    return lambda index: PALETTE[bricks[index].z % len(PALETTE)]


def color_by_load(verdict: Verdict) -> Callable[[int], Color]:
    """Green to red by how close each brick is to failing; floating ones stand out."""

    def color_of(index: int) -> Color:
        load = float(verdict.load[index])
        if math.isnan(load):
            return UNKNOWN
        if math.isinf(load):
            return FLOATING
        channels = zip(*LOAD_COLORS.values(), strict=True)
        r, g, b = (round(np.interp(load, list(LOAD_COLORS), channel)) for channel in channels)
        return r, g, b

    return color_of


def project(x: float, y: float, z: float) -> Point:
    """Studs to the picture plane, seen from the front and a little from the right."""
    away = y * math.cos(TURN) - x * math.sin(TURN)
    return x * math.cos(TURN) + y * math.sin(TURN), -z * BRICK_HEIGHT * math.cos(TILT) - away * math.sin(TILT)


def back_to_front(bricks: Sequence[Brick]) -> list[int]:
    """An order in which nothing is painted over what stands before it."""
    # From above, a lower layer never hides a higher one; within a layer, what lies wholly behind
    # or to the left of a brick comes before it.
    order: list[int] = []
    waiting = sorted(range(len(bricks)), key=lambda i: (bricks[i].z, -bricks[i].y, bricks[i].x))
    while waiting:
        for i in waiting:
            b = bricks[i]
            if not any(_hides(b, bricks[j]) for j in waiting if j != i and bricks[j].z == b.z):
                order.append(i)
                waiting.remove(i)
                break
    return order


def _hides(front: Brick, back: Brick) -> bool:
    """Whether `back` must be painted before `front`, both in one layer."""
    behind = back.y >= front.y + front.w and back.x < front.x + front.h
    left = back.x + back.h <= front.x and back.y + back.w > front.y
    return behind or left


def draw_bricks(
    bricks: Sequence[Brick], size: int = 320, color_of: Callable[[int], Color] = color_by_brick
) -> Image.Image:
    """A square picture of a structure on its base plate."""
    scale_to = size * OVERSAMPLING
    image = Image.new("RGB", (scale_to, scale_to), PAPER)
    if not bricks:
        return image.resize((size, size))
    x0, x1 = min(b.x for b in bricks) - 1, max(b.x + b.h for b in bricks) + 1
    y0, y1 = min(b.y for b in bricks) - 1, max(b.y + b.w for b in bricks) + 1
    top = max(b.z for b in bricks) + 1
    corners = [project(x, y, z) for x in (x0, x1) for y in (y0, y1) for z in (0, top + STUD_HEIGHT)]
    left, right = min(p[0] for p in corners), max(p[0] for p in corners)
    high, low = min(p[1] for p in corners), max(p[1] for p in corners)
    scale = 0.94 * scale_to / max(right - left, low - high)
    shift_x = (scale_to - scale * (left + right)) / 2
    shift_y = (scale_to - scale * (high + low)) / 2

    def at(x: float, y: float, z: float) -> Point:
        u, v = project(x, y, z)
        return shift_x + scale * u, shift_y + scale * v

    pen = ImageDraw.Draw(image)
    pen.polygon([at(x0, y0, 0), at(x1, y0, 0), at(x1, y1, 0), at(x0, y1, 0)], PLATE, _shade(PLATE, 0.85))
    for i in back_to_front(bricks):
        _draw_brick(pen, bricks[i], color_of(i), at, scale)
    return image.resize((size, size), Image.Resampling.LANCZOS)


def add_legend(image: Image.Image, legend: Legend) -> Image.Image:
    """The picture with a row below it that says what the colors mean."""
    text = max(9, image.width // 32)
    taller = Image.new("RGB", (image.width, image.height + 2 * text), PAPER)
    taller.paste(image)
    pen, font = ImageDraw.Draw(taller), ImageFont.load_default(text)
    widths = [1.4 * text + font.getlength(words) for _, words in legend]
    gap = (image.width - sum(widths)) / (len(legend) + 1)
    left, middle = gap, image.height + text / 2
    for (color, words), width in zip(legend, widths, strict=True):
        pen.rectangle((left, middle - text / 2, left + text, middle + text / 2), color)
        pen.text((left + 1.4 * text, middle), words, (60, 60, 60), font, anchor="lm")
        left += width + gap
    return taller


def _draw_brick(
    pen: ImageDraw.ImageDraw, b: Brick, color: Color, at: Callable[[float, float, float], Point], scale: float
) -> None:
    x1, y1, z1 = b.x + b.h, b.y + b.w, b.z + 1
    edge, line = _shade(color, 0.45), max(1, round(scale * 0.05))
    faces = (
        ([at(b.x, b.y, b.z), at(x1, b.y, b.z), at(x1, b.y, z1), at(b.x, b.y, z1)], 0.84),
        ([at(x1, b.y, b.z), at(x1, y1, b.z), at(x1, y1, z1), at(x1, b.y, z1)], 0.66),
        ([at(b.x, b.y, z1), at(x1, b.y, z1), at(x1, y1, z1), at(b.x, y1, z1)], 1.0),
    )
    for corners, light in faces:
        pen.polygon(corners, _shade(color, light), edge, line)
    radius = STUD_RADIUS * scale
    flat = radius * math.sin(TILT)
    for y in reversed(range(b.y, y1)):
        for x in range(b.x, x1):
            foot_x, foot_y = at(x + 0.5, y + 0.5, z1)
            head_y = foot_y - STUD_HEIGHT * scale * math.cos(TILT)
            side = _shade(color, 0.75)
            pen.ellipse((foot_x - radius, foot_y - flat, foot_x + radius, foot_y + flat), side)
            pen.rectangle((foot_x - radius, head_y, foot_x + radius, foot_y), side)
            rim = (foot_x - radius, head_y - flat, foot_x + radius, head_y + flat)
            pen.ellipse(rim, _shade(color, 1.08), edge, max(1, line // 2))


def _shade(color: Color, light: float) -> Color:
    r, g, b = (min(255, round(channel * light)) for channel in color)
    return r, g, b
