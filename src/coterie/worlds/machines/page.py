"""A run as a web page that stands alone: play it, stop it, turn it around."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from coterie.worlds.machines.blocks import BLOCKS
from coterie.worlds.machines.bodies import machine_front
from coterie.worlds.machines.motion import record
from coterie.worlds.machines.solids import band_colors, solids_of
from coterie.worlds.machines.terrain import DEPTH, RIDGE_RADIUS, Scene, boxes_of, ridges_of
from coterie.worlds.machines.tree import Machine

TEMPLATE = Path(__file__).with_name("page.html")
PLACE = "{{machine}}"
EVERY = 0.05


def draw_page(machine: Machine, scene: Scene, title: str) -> str:
    """One HTML file without any link to others."""
    run, motion = record(machine, scene, EVERY)
    ways = [("starting block", run.root), ("boulder", run.boulder), ("load", run.load)]
    told = ", ".join(
        f"the {name} ends {np.linalg.norm(track[-1, :2] - track[0, :2]):.2f} m away"
        for name, track in ways
        if track is not None
    )
    front = machine_front(machine)
    shown: dict[str, Any] = {
        "title": title,
        "told": f"{len(machine.parts)} blocks; {told}; {len(run.broken)} came loose.",
        "every": EVERY,
        "solids": [
            {
                "form": s.form,
                "size": s.size,
                "offset": s.offset,
                "axes": _short(s.axes),
                "color": s.color,
                "body": s.body,
            }
            for s in solids_of(machine, bool(scene.load_mass))
        ],
        "names": [
            f"block {i}: {BLOCKS[part.kind].name}"
            for i, (part, place) in enumerate(zip(machine.parts, machine.places, strict=True))
            if place
        ],
        "middles": _short(motion.middles),
        "turns": _short(motion.turns.reshape(*motion.turns.shape[:2], 9)),
        "ends": _short(motion.ends),
        "torn": [None if np.isinf(t) else float(t) for t in motion.torn],
        "bands": band_colors(machine),
        "floor": -DEPTH if scene.terrain == "gap" else 0.0,
        "boxes": [[start, stop, low, high] for (start, stop), low, high in boxes_of(scene, front)],
        "ridges": [[x, scene.height, RIDGE_RADIUS] for x in ridges_of(scene, front)],
    }
    # A title may hold anything; without "<" it cannot end the script that carries it.
    return TEMPLATE.read_text(encoding="utf-8").replace(PLACE, json.dumps(shown).replace("<", "\\u003c"))


def _short(values: Any) -> Any:
    return np.asarray(values).round(3).tolist()
