"""Structures out into the world: LDraw for LEGO CAD programs, text, a picture or a page."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.worlds.bricks.page import draw_page
from coterie.worlds.bricks.picture import (
    LOAD_LEGEND,
    Color,
    add_legend,
    color_by_brick,
    color_by_layer,
    color_by_load,
    draw_bricks,
)
from coterie.worlds.bricks.stability import analyze
from coterie.worlds.bricks.structure import Brick, BrickError, find_fault, parse_bricks, print_bricks

# The official part of each size; its long side lies along LDraw's x, its origin in the middle of its top.
PARTS = {
    (1, 1): "3005",
    (1, 2): "3004",
    (1, 4): "3010",
    (1, 6): "3009",
    (1, 8): "3008",
    (2, 2): "3003",
    (2, 4): "3001",
    (2, 6): "2456",
}
SIZE_OF = {part: size for size, part in PARTS.items()}
STUD, HEIGHT = 20, 24  # in LDraw units
# Quarter turns about the vertical, and whether each lays the long side along our y.
TURNS = {
    (1, 0, 0, 0, 1, 0, 0, 0, 1): False,
    (0, 0, 1, 0, 1, 0, -1, 0, 0): True,
    (-1, 0, 0, 0, 1, 0, 0, 0, -1): False,
    (0, 0, -1, 0, 1, 0, 1, 0, 0): True,
}
ALONG_X, ALONG_Y = (" ".join(map(str, turn)) for turn in list(TURNS)[:2])
# Codes that every LDraw program knows, and in which real bricks are sold.
LDRAW_COLORS: dict[int, Color] = {
    1: (30, 90, 168),
    2: (0, 133, 43),
    4: (180, 0, 0),
    14: (250, 200, 10),
    15: (244, 244, 244),
    22: (103, 31, 129),
    25: (214, 121, 35),
    26: (144, 31, 118),
    27: (165, 202, 24),
    71: (150, 150, 150),
    73: (115, 150, 200),
}
COLORINGS = ("brick", "layer", "load")
ENDINGS = (".ldr", ".html", ".png", ".txt")
LARGEST_WORLD = 32
PICTURE_SIZE = 960


class ExportError(ValueError):
    """What cannot be written; the message says what to ask for instead."""


def print_ldraw(bricks: Sequence[Brick], name: str, color_of: Callable[[int], Color] = color_by_brick) -> str:
    """One line a brick and a building step a layer; `parse_ldraw` reads it back."""
    # Ours is x to the right, y away, z up; LDraw's is x to the right, z away, y down. The lowest
    # layer lies at 0, as in the files BrickGPT writes.
    title = " ".join(name.split())
    lines = [f"0 {title}", f"0 Name: {title}.ldr", "0 Author: Coterie", "0 !LDRAW_ORG Unofficial_Model"]
    for i, b in enumerate(bricks):
        if i > 0 and b.z != bricks[i - 1].z:
            lines.append("0 STEP")
        part = PARTS[min(b.h, b.w), max(b.h, b.w)]
        place = f"{STUD * b.x + STUD // 2 * b.h} {-HEIGHT * b.z} {STUD * b.y + STUD // 2 * b.w}"
        lines.append(f"1 {nearest_code(color_of(i))} {place} {ALONG_Y if b.w > b.h else ALONG_X} {part}.dat")
    return "\n".join([*lines, "0 STEP", ""])


def nearest_code(color: Color) -> int:
    """The LDraw color most like this one."""
    return min(LDRAW_COLORS, key=lambda code: math.dist(color, LDRAW_COLORS[code]))


def parse_ldraw(text: str) -> list[Brick]:
    """The bricks of an LDraw model in the order of its lines; colors and steps are passed over."""
    lines = ((number, line.split(maxsplit=14)) for number, line in enumerate(text.splitlines(), 1))
    return [_read_part(number, words) for number, words in lines if words and words[0] == "1"]


def _read_part(number: int, words: list[str]) -> Brick:
    try:
        x, y, z, *turn = (float(word) for word in words[2:14])
    except ValueError:
        x, y, z, turn = 0.0, 0.0, 0.0, []
    if len(words) != 15 or len(turn) != 9 or not all(map(math.isfinite, (x, y, z, *turn))):
        raise BrickError(
            f"line {number}: a part is written as '1 color x y z', nine numbers that turn it, and its file"
        )
    part = words[14].strip().lower().removesuffix(".dat")
    if part not in SIZE_OF:
        raise BrickError(f"line {number}: {words[14][:40]!r} is not a brick of the library: {', '.join(SIZE_OF)}")
    whole = tuple(round(entry) for entry in turn)
    if whole not in TURNS or math.dist(turn, whole) > 1e-3:
        raise BrickError(f"line {number}: the brick is tilted, mirrored or turned by other than quarter turns")
    w, h = SIZE_OF[part][:: -1 if TURNS[whole] else 1]
    corner = (x / STUD - h / 2, z / STUD - w / 2, -y / HEIGHT)
    cell = tuple(map(round, corner))
    if math.dist(corner, cell) > 1e-3 or not all(0 <= place <= 9999 for place in cell):
        raise BrickError(f"line {number}: the brick is off the grid of studs and layers, or before its origin")
    return Brick(h, w, *cell)


def read_bricks(path: Path) -> list[Brick]:
    """A structure from a text file, or from LDraw where the name ends in .ldr."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise ExportError(f"{path} cannot be read: {error.strerror}") from None
    return parse_ldraw(text) if path.suffix.lower() == ".ldr" else parse_bricks(text)


def export_bricks(bricks: Sequence[Brick], path: Path, coloring: str = "brick") -> None:
    """Write a structure in the format that the file's ending names."""
    ending = path.suffix.lower()
    if ending not in ENDINGS:
        raise ExportError(f"{path.name!r} does not say which format; end it in {', '.join(ENDINGS)}")
    if coloring not in COLORINGS:
        raise ExportError(f"there are no colors by {coloring!r}; write one of {', '.join(COLORINGS)}")
    if fault := find_fault(bricks, LARGEST_WORLD) if bricks else "there is no brick":
        raise ExportError(fault)
    verdict = analyze(bricks)
    color_of = {
        "brick": color_by_brick,
        "layer": color_by_layer(bricks),
        "load": color_by_load(verdict),
    }[coloring]
    try:
        if ending == ".png":
            picture = draw_bricks(bricks, PICTURE_SIZE, color_of)
            (add_legend(picture, LOAD_LEGEND) if coloring == "load" else picture).save(path)
        elif ending == ".html":
            path.write_text(draw_page(bricks, verdict, path.stem, coloring), encoding="utf-8")
        elif ending == ".ldr":
            path.write_text(print_ldraw(bricks, path.stem, color_of), encoding="utf-8")
        else:
            path.write_text(print_bricks(bricks), encoding="utf-8")
    except OSError as error:
        raise ExportError(f"{path} cannot be written: {error.strerror}") from None
