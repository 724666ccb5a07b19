"""The compact language: three tokens a block (kind, parent, face), and which of them are legal.

The starting block is not written. A two-ended block takes six: its kind and one end, then `<to>` and the
other end. So all rows are always at the same of three stages. The prompt is spelled in words and digits.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from coterie.rollouts import Bools, Ints, Task
from coterie.worlds.base import Constraint, LanguageError
from coterie.worlds.machines.blocks import BLOCKS, ROOT
from coterie.worlds.machines.fitting import MOST_FACES, Fitting
from coterie.worlds.machines.goals import KINDS, goals_of
from coterie.worlds.machines.tree import Part, TreeError, lay_out, parse_parts, print_machine

END = 0
TO, BUILD = "<to>", "<build>"
WRITTEN = tuple(kind for kind in BLOCKS if kind != ROOT)
TWO_ENDED = np.array([BLOCKS[kind].two_ended for kind in WRITTEN])
FACES = np.array([0 if BLOCKS[kind].two_ended else len(BLOCKS[kind].faces) for kind in WRITTEN])


@dataclass(frozen=True)
class MachineLanguage:
    """Machines of up to `max_blocks` blocks, the starting block among them; a two-ended block counts as two."""

    max_blocks: int = 24
    allowed: Callable[[Task], Collection[str]] = lambda task: BLOCKS

    @cached_property
    def vocabulary(self) -> Sequence[str]:
        kinds = [f"{kind}:{BLOCKS[kind].name.replace(' ', '_')}" for kind in WRITTEN]
        parents = [f"p{i}" for i in range(self.max_blocks)]
        faces = [f"f{i}" for i in range(MOST_FACES)]
        words = {word for kind in KINDS for goal in goals_of(kind) for word in goal.words.split()}
        spelled = sorted(word for word in words if not word.isdigit())
        return ["<end>", TO, *kinds, *parents, *faces, BUILD, *"0123456789", *spelled]

    @cached_property
    def _ids(self) -> dict[str, int]:
        return {spelling: i for i, spelling in enumerate(self.vocabulary)}

    @cached_property
    def starts(self) -> tuple[int, int, int]:
        """The first kind, parent and face."""
        return 2, 2 + len(WRITTEN), 2 + len(WRITTEN) + self.max_blocks

    @property
    def end(self) -> int:
        return END

    @property
    def max_tokens(self) -> int:
        return 3 * (self.max_blocks - 1) + 1

    def encode_prompt(self, prompt: str) -> list[int]:
        """Word by word, numbers digit by digit."""
        tokens = []
        for word in re.findall(r"\d|[^\s\d]+", prompt):
            if self._ids.get(word, END) <= self._ids[BUILD]:
                known = ", ".join(self.vocabulary[self._ids["9"] + 1 :])
                raise LanguageError(f"{word!r} is not a word this world knows; use numbers and: {known}")
            tokens.append(self._ids[word])
        return [*tokens, self._ids[BUILD]]

    def encode(self, answer: str) -> list[int]:
        try:
            parts = lay_out(parse_parts(answer)).parts
        except TreeError as error:
            raise LanguageError(str(error)) from error
        kind_at, parent_at, face_at = self.starts
        tokens: list[int] = []
        for part in parts[1:]:
            tokens += [kind_at + WRITTEN.index(part.kind), parent_at + part.parent, face_at + part.face]
            if BLOCKS[part.kind].two_ended:
                tokens += [self._ids[TO], parent_at + part.parent_b, face_at + part.face_b]
        if len(tokens) >= self.max_tokens:
            raise LanguageError(
                f"the machine has more than max_blocks = {self.max_blocks} blocks (two-ended: two each)"
            )
        return [*tokens, END]

    def decode(self, tokens: Sequence[int]) -> str:
        """Whole blocks only: one cut off by the length limit is left out."""
        body = [t for t in tokens if t != END]
        kind_at, parent_at, face_at = self.starts
        parts: list[Part] = [Part(ROOT)]
        half: Part | None = None
        for i in range(0, len(body) // 3 * 3, 3):
            kind, parent, face = body[i], body[i + 1] - parent_at, body[i + 2] - face_at
            if half is not None:
                parts.append(half._replace(parent_b=parent, face_b=face))
                half = None
                continue
            part = Part(WRITTEN[kind - kind_at], parent, face)
            if BLOCKS[part.kind].two_ended:
                half = part
            else:
                parts.append(part)
        return print_machine(parts)

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        return MachineConstraint(self, tasks)


class MachineConstraint:
    """Follows many machines at once and says which token may come next in each."""

    def __init__(self, language: MachineLanguage, tasks: Sequence[Task]) -> None:
        self.language = language
        rows = len(tasks)
        known: dict[int, Bools] = {}
        for task in tasks:  # siblings share their task
            if id(task) not in known:
                allowed = language.allowed(task)
                known[id(task)] = np.array([kind in allowed for kind in WRITTEN])
        self.allowed = np.array([known[id(task)] for task in tasks], np.bool_).reshape(rows, len(WRITTEN))
        self.fitting = Fitting(rows, language.max_blocks, np.asarray(self.allowed.any(0)))
        self.room = np.full(rows, language.max_blocks - 1)
        self.half = np.zeros(rows, np.bool_)  # a two-ended block waits for its other end
        self.stage = 0
        # Of the block being attached, and of the first end of a half one:
        self.kind, self.parent, self.first = np.zeros((3, rows), np.int64)

    def legal(self) -> Bools:
        language = self.language
        mask = np.zeros((len(self.room), len(language.vocabulary)), np.bool_)
        if self.stage == 0:
            two_ended = self.room[:, None] > 1
            fits = np.where(TWO_ENDED, two_ended, self.fitting.any_place() & (self.room[:, None] > 0))
            mask[:, language.starts[0] : language.starts[1]] = fits & self.allowed & ~self.half[:, None]
            mask[:, END], mask[:, 1] = ~self.half, self.half
        else:
            slots = self._slots()  # [rows, blocks, faces]
            start = language.starts[self.stage]
            if self.stage == 1:
                mask[:, start : start + slots.shape[1]] = slots.any(2)
            else:
                mask[:, start : start + MOST_FACES] = slots[np.arange(len(slots)), self.parent]
        return mask

    def _slots(self) -> Bools:
        """[rows, blocks, faces]: where the block being attached may go."""
        ends = TWO_ENDED[self.kind]
        slots = np.where(ends[:, None], self.fitting.faces(), self.fitting.places(self.kind))
        waiting = np.flatnonzero(self.half)
        slots[waiting, self.first[waiting]] = False
        return slots.reshape(len(slots), -1, MOST_FACES)

    def advance(self, tokens: Ints) -> None:
        # A row that chose the end is expected to leave; until then nothing is done to it.
        going = tokens != END
        chosen = tokens - self.language.starts[self.stage]
        if self.stage == 0:
            self.kind = np.where(going & ~self.half, chosen, self.kind)
        elif self.stage == 1:
            self.parent = np.where(going, chosen, 0)
        else:
            self._attach(going, np.where(going, self.parent * MOST_FACES + chosen, 0))
        self.stage = (self.stage + 1) % 3

    def _attach(self, going: Bools, slot: Ints) -> None:
        ends = TWO_ENDED[self.kind]
        self.room = self.room - going
        single = np.flatnonzero(going & ~ends)
        self.fitting.place(single, self.kind[single], slot[single])
        self.fitting.skip(np.flatnonzero(going & ends & self.half))
        self.first = np.where(going & ends & ~self.half, slot, self.first)
        self.half = going & ends & ~self.half

    def keep(self, rows: Ints) -> None:
        self.fitting.keep(rows)
        self.allowed, self.room, self.half = self.allowed[rows], self.room[rows], self.half[rows]
        self.kind, self.parent, self.first = self.kind[rows], self.parent[rows], self.first[rows]
