"""Finds a world by name or in a user's Python file."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from coterie.worlds.base import World

# Written out by hand; a name's module is imported only when it is asked for.
WORLDS = {
    "bricks": "coterie.worlds.bricks:BricksWorld",
    "theory": "coterie.worlds.theory:TheoryWorld",
    "fill": "coterie.worlds.fill:FillWorld",
    "machines": "coterie.worlds.machines:MachinesWorld",
    "prompts": "coterie.worlds.prompts:PromptsWorld",
}


class WorldError(ValueError):
    """No such world, or a file without one; the message says what to write."""


def world_class(name: str) -> type[World]:
    """The class of a world: one of ours by name, or the one a Python file defines."""
    if name.endswith(".py"):
        return _class_in(Path(name))
    if name not in WORLDS:
        near = difflib.get_close_matches(name, WORLDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"write one of {', '.join(WORLDS)}, or a file that ends in .py"
        raise WorldError(f"there is no world {name!r}; {hint}")
    module, _, attribute = WORLDS[name].partition(":")
    found: type[World] = getattr(importlib.import_module(module), attribute)
    return found


def world_fields(name: str) -> dict[str, Any]:
    """The settings of a world with their defaults."""
    cls = world_class(name)
    if not dataclasses.is_dataclass(cls):
        return {}
    return {
        f.name: f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default
        for f in dataclasses.fields(cls)
        if f.init
    }


def load_world(name: str, settings: Mapping[str, Any] | None = None) -> World:
    """A world with these settings, for example load_world("bricks", {"max_bricks": 40})."""
    cls = world_class(name)
    try:
        return cls(**(settings or {}))
    except (TypeError, ValueError) as error:
        raise WorldError(f"the world {name!r} refuses its settings: {error}") from error


def _class_in(path: Path) -> type[World]:
    if not path.is_file():
        raise WorldError(f"there is no file {path}")
    name = f"coterie_user_world_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look their module up here
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # anything may be wrong in a user's file; it is told, not traced
        raise WorldError(f"{path} cannot be imported: {type(error).__name__}: {error}") from error
    worlds = [c for c in vars(module).values() if isinstance(c, type) and c.__module__ == name and World in c.__mro__]
    if len(worlds) != 1:
        found = ", ".join(c.__name__ for c in worlds) or "none"
        raise WorldError(f"{path} must define one class that subclasses coterie.World; it has {found}")
    return worlds[0]
