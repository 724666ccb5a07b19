"""A structure as a web page that stands alone: turn it, build it brick by brick, see its loads."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

from coterie.worlds.bricks.picture import (
    BRICK_HEIGHT,
    LOAD_LEGEND,
    color_by_brick,
    color_by_layer,
    color_by_load,
)
from coterie.worlds.bricks.stability import MAX_LOAD_FACTOR, Verdict
from coterie.worlds.bricks.structure import Brick

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "{{structure}}"


def draw_page(bricks: Sequence[Brick], verdict: Verdict, title: str, coloring: str = "brick") -> str:
    """One HTML file without any link to others; it opens in the given colors."""
    colors = {"brick": color_by_brick, "layer": color_by_layer(bricks), "load": color_by_load(verdict)}
    structure = {
        "title": title,
        "verdict": say_verdict(verdict),
        "brickHeight": BRICK_HEIGHT,
        "bricks": bricks,
        "names": [f"brick {i + 1}: {b}, {say_load(float(verdict.load[i]))}" for i, b in enumerate(bricks)],
        "colors": {name: [color_of(i) for i in range(len(bricks))] for name, color_of in colors.items()},
        "coloring": coloring,
        "legend": LOAD_LEGEND,
    }
    # A title may hold anything; without "<" it cannot end the script that carries it.
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, json.dumps(structure).replace("<", "\\u003c"))


def say_load(load: float) -> str:
    """What a brick bears, in words."""
    if math.isnan(load):
        return "load not known while others float"
    if math.isinf(load):
        return "floats"
    return f"{load:.0%} of what its studs hold" if load < 1.0 else "fails"


def say_verdict(verdict: Verdict) -> str:
    """Whether it stands, in words."""
    if not verdict.stable:
        return f"It does not stand: {verdict.reason}."
    at_least = "at least " if verdict.load_factor >= MAX_LOAD_FACTOR else ""
    return f"It stands, and would under {at_least}{verdict.load_factor:.3g} times its own weight."
