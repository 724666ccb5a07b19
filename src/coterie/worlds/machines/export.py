"""Machines out into the world: a strip, an animation, MJCF for MuJoCo's viewer, a page, JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coterie.worlds.machines.bodies import build
from coterie.worlds.machines.page import draw_page
from coterie.worlds.machines.picture import draw_strip, save_gif
from coterie.worlds.machines.solids import COLORS, LOAD_COLOR, WOOD, Color
from coterie.worlds.machines.terrain import Scene
from coterie.worlds.machines.tree import Machine, TreeError, print_machine, read_machine

ENDINGS = (".png", ".gif", ".xml", ".html", ".json")


class MachineExportError(ValueError):
    """What cannot be written; the message says what to ask for instead."""


def print_mjcf(machine: Machine, scene: Scene) -> str:
    """The machine on its terrain as MuJoCo's own XML, with lights and colors; its motors run by themselves."""
    built = build(machine, scene)
    spec: Any = built.spec
    for geom in spec.geoms:
        number = geom.name.removeprefix("block").partition(".")[0]
        if number.isdigit():
            geom.rgba = _rgba(COLORS.get(machine.parts[int(number)].kind, WOOD))
        else:
            geom.rgba = _rgba(LOAD_COLOR if geom.name == "load" else (206, 196, 178))
    spec.worldbody.add_light(pos=[0.0, 0.0, 30.0], dir=[0.2, 0.3, -1.0])
    spec.visual.headlight.ambient = [0.5, 0.5, 0.5]
    spec.compile()
    text: str = spec.to_xml()
    return text


def _rgba(color: Color) -> list[float]:
    return [*(channel / 255 for channel in color), 1.0]


def export_machine(source: Path, to: Path, scene: Scene) -> None:
    """Write the machine of a JSON file in the format that the other file's ending names."""
    ending = to.suffix.lower()
    if ending not in ENDINGS:
        raise MachineExportError(f"{to.name!r} does not say which format; end it in {', '.join(ENDINGS)}")
    try:
        machine = read_machine(source.read_text(encoding="utf-8", errors="replace"))
        if ending == ".png":
            draw_strip(machine, scene).save(to)
        elif ending == ".gif":
            save_gif(machine, scene, to)
        elif ending == ".xml":
            to.write_text(print_mjcf(machine, scene), encoding="utf-8")
        elif ending == ".html":
            to.write_text(draw_page(machine, scene, source.stem), encoding="utf-8")
        else:
            to.write_text(print_machine(machine.parts) + "\n", encoding="utf-8")
    except TreeError as error:
        raise MachineExportError(f"{source} is no valid machine: {error}") from None
    except OSError as error:
        raise MachineExportError(f"{error.filename} cannot be used: {error.strerror}") from None
