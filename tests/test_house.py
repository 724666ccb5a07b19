"""The rules of the house: imports point inward, and the step fits one screen."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Iterator
from pathlib import Path

import pytest

import coterie
from coterie.training.trainer import Trainer

SOURCE = Path(coterie.__file__).parent

# What each room may import of ours. The longest matching prefix counts.
ALLOWED = {
    "rollouts": (),
    "extras": (),
    "phases": (),
    "config": ("aliases",),
    "aliases": (),
    "arguments": (),
    "tuning": ("aliases", "build", "config", "display", "engines.base", "extras", "worlds.load"),
    "models": (),
    "chatting": ("rollouts", "training.trainer"),
    "sizes": ("config", "models", "training.curriculum", "worlds.base"),
    "doubts": ("config", "sizes", "worlds.base"),
    "explain": ("doubts", "sizes", "config", "training.curriculum", "worlds.base"),
    "judges": ("config", "engines", "runs", "training", "worlds.base"),
    "assembly": ("engines.base", "rollouts", "worlds.bricks"),
    "commands": ("",),
    "answers": ("arguments", "build", "config", "rollouts", "runs", "theories", "worlds"),
    "theories": ("worlds.base", "worlds.theory"),
    "grpo": ("grpo",),
    "runs": ("runs",),
    "worlds": ("worlds", "rollouts"),
    "worlds.machines": ("worlds", "rollouts", "extras"),
    "worlds.prompts": ("worlds", "rollouts", "extras"),
    "worlds.prompts.jail": (),
    "engines.base": ("rollouts", "worlds.base"),
    "engines": ("engines", "grpo", "phases", "rollouts", "worlds.base"),
    "report": ("report", "rollouts", "runs", "extras"),
    "training": (
        "training",
        "engines.base",
        "worlds.base",
        "grpo",
        "phases",
        "rollouts",
        "runs",
        "config",
    ),
    "bridges": ("bridges", "training", "rollouts", "extras"),
    "display": (),
    "build": ("config", "engines", "extras", "grpo", "judges", "report", "runs", "training", "worlds", "bridges"),
    "demo": ("build", "config", "display", "report", "rollouts", "training"),
    "stopping": ("display", "training"),
    "cli": ("",),
    "own_rollouts": ("engines", "grpo", "rollouts"),
    "__init__": ("build", "config", "own_rollouts", "rollouts", "worlds"),
}
ONLY_IN = {
    "pydantic": ("config",),
    "rich": ("display",),
    "torch": ("engines.torch", "build", "bridges"),
    "transformers": ("engines.torch",),
    "peft": ("engines.torch",),
    "triton": ("engines.torch",),
    "llguidance": (),  # an extra: only ever required
    "jax": ("engines.jax",),
    "tomllib": ("config",),
    "mujoco": (),  # an extra: only ever required
    "jsonschema": (),
    "reasoning_gym": (),
}


def modules() -> Iterator[tuple[str, list[str]]]:
    for path in sorted(SOURCE.rglob("*.py")):
        name = ".".join(path.relative_to(SOURCE).with_suffix("").parts)
        found = []
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                found += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                assert node.level == 0, f"{name} imports relatively"
                found.append(str(node.module))
        yield name, found


def below(name: str, prefix: str) -> bool:
    return prefix == "" or name == prefix or name.startswith(prefix + ".")


@pytest.mark.parametrize(
    ("name", "imported"), list(modules()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_imports_point_inward(name: str, imported: list[str]) -> None:
    rule = max((rule for rule in ALLOWED if below(name, rule)), key=len)
    for module in imported:
        top, _, rest = module.partition(".")
        if top == "coterie" and rest:
            assert any(below(rest, room) for room in ALLOWED[rule]), f"{name} may not import {module}"
        if top in ONLY_IN:
            assert any(below(name, room) for room in ONLY_IN[top]), f"{name} may not import {module}"


def test_the_step_fits_one_screen() -> None:
    assert len(inspect.getsource(Trainer.step).splitlines()) < 50


def test_no_file_is_two_things() -> None:
    long = {p.name: n for p in SOURCE.rglob("*.py") if (n := len(p.read_text().splitlines())) > 450}
    assert not long
