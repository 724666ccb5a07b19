"""Machines and tasks in words, for language models: what is asked, what there is, and what a machine is."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Sequence

import numpy as np

from coterie.rollouts import Task
from coterie.worlds.machines.blocks import BLOCKS, ROOT, Motion
from coterie.worlds.machines.frames import FACINGS, turn
from coterie.worlds.machines.goals import goal_of
from coterie.worlds.machines.making import make_machine
from coterie.worlds.machines.tree import ENVELOPE, Machine, lay_out, print_machine

WHERE = {"z+": "forward", "z-": "backward", "x+": "to the right", "x-": "to the left", "y+": "up", "y-": "down"}
SIDE = {"up": "top", "down": "underside", "left": "left side", "right": "right side"}
DOES = {
    Motion.RIGID: "does not move",
    Motion.WHEEL: "spins about its front axis",
    Motion.SPIN: "turns about its front axis",
    Motion.SWING: "swings up and down, 90 degrees each way",
    Motion.TURN: "turns left and right",
    Motion.BALL: "moves every way about its middle",
    Motion.SLIDE: "gives along its front axis",
    Motion.FREE: "is held by nothing",
    Motion.STRUT: "joins two faces and keeps them apart as they are",
    Motion.BAND: "joins two faces and pulls them together",
    Motion.ROPE: "joins two faces and keeps them from parting",
}


def describe(machine: Machine) -> str:
    """A machine in words, a sentence a block."""
    counts: dict[str, int] = {}
    for part in machine.parts[1:]:
        counts[part.kind] = counts.get(part.kind, 0) + 1
    listed = ", ".join(f"{n} {BLOCKS[kind].name}{'s' if n > 1 else ''}" for kind, n in counts.items())
    lines = [f"The machine is the starting block{f' with {listed}' if listed else ' alone'}."]
    for number, (part, place) in enumerate(zip(machine.parts, machine.places, strict=True)):
        name = BLOCKS[part.kind].name
        if number == 0:
            continue
        if place is None:
            lines.append(
                f"Block {number}, a {name}, joins face {part.face} of block {part.parent} "
                f"to face {part.face_b} of block {part.parent_b}."
            )
            continue
        face = BLOCKS[machine.parts[part.parent].kind].faces[part.face].direction
        x, y, z = place.middle
        lines.append(
            f"Block {number}, a {name}, is on the {SIDE.get(face, face)} of block {part.parent} (face {part.face}); "
            f"it points {WHERE[FACINGS[place.facing]]} and its middle is at ({x:g}, {y:g}, {z:g})."
        )
    return "\n".join(lines)


RULES = """\
Write a JSON list of blocks in building order. The first is always
{root}
Every other block has "id" (its kind, a text), "order_id" (its place in the list), "parent" (the order_id of
an earlier block) and "bp_id" (a free face of that block). Blocks that join two faces have "parent_a", "bp_id_a",
"parent_b" and "bp_id_b" instead, and leave the faces free.

The starting block faces z+; x is to its right, y is up. A child faces the way its face points:
{turns}
Nothing else is turned. Blocks must not overlap, and the machine is at most {x:g} m wide, {y:g} m high, {z:g} m long.
"""


WORDS_FIRST = "Think in words first, then give the list between ```json and ```."


def instruction(task: Task, allowed: Collection[str], words_first: bool = True) -> str:
    """A whole prompt for a language model."""
    x, y, z = ENVELOPE
    sides = ("left", "right", "up", "down")
    turns = "\n".join(
        f"on a block that faces {facing}, {', '.join(f'{side} is {FACINGS[turn(i, side)]}' for side in sides)};"
        for i, facing in enumerate(FACINGS)
    )
    root = json.dumps({"id": ROOT, "order_id": 0, "parent": -1, "bp_id": -1})
    blocks = "\n".join(_block_line(kind) for kind in BLOCKS if kind in allowed)
    return (
        f"Design a machine: {task.prompt}. {_wanted(task)}\n\n"
        f"{RULES.format(root=root, turns=turns, x=x, y=y, z=z)}\nBlocks:\n{blocks}\n\n"
        f"{WORDS_FIRST if words_first else 'Give the list alone.'}"
    )


def _wanted(task: Task) -> str:
    return {
        "car": "After 5 seconds the starting block should be as far away as possible.",
        "catapult": "The boulder should fly far and rise above 3 m; it must be thrown, not carried.",
        "climb": "After 5 seconds the starting block should be far forward, on top of the step.",
        "carry": "A box lies on top of the machine; after 5 seconds it should be far away and still aboard.",
        "cross": "After 5 seconds the starting block should be far forward, beyond the gap.",
    }[goal_of(task).kind]


def _block_line(kind: str) -> str:
    block = BLOCKS[kind]
    faces = "; ".join(
        f"{i} {f.direction} at ({', '.join(f'{v:g}' for v in f.place)})" for i, f in enumerate(block.faces)
    )
    size = "" if block.two_ended else f", {' x '.join(f'{side:g}' for side in block.size)} m"
    drives = ", with a motor" if block.speed else ""
    return f'"{kind}" {block.name}: {block.mass:g} kg{size}, {DOES[block.motion]}{drives}; faces: {faces or "none"}'


def cold_start_records(tasks: Sequence[Task], allowed: Collection[str], count: int, seed: int) -> Iterator[str]:
    """Lines of JSON (prompt, answer) for supervised training of a language model: words, then the machine."""
    for i in range(count):
        rng = np.random.default_rng([seed, i])
        task = tasks[i % len(tasks)]
        machine = lay_out(make_machine(goal_of(task).kind, allowed, 24, rng))
        answer = f"{describe(machine)}\n\n```json\n{print_machine(machine.parts)}\n```"
        yield json.dumps({"prompt": instruction(task, allowed), "answer": answer, "task": task.id})
