"""The contract between a world and everything else: World, Language, Constraint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, overload, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from coterie.rollouts import Bits, Bools, Ints, Score, Task, pack_bits

if TYPE_CHECKING:
    from PIL.Image import Image


class LanguageError(ValueError):
    """A text that this language cannot write; the message says where and why."""


@dataclass(frozen=True)
class Example:
    """An answer to learn from. With `total` it is also a test: the world must give that score."""

    task: Task
    answer: str
    total: float | None = None


@dataclass(frozen=True)
class MadeExamples(Sequence[Example]):
    """Examples that are made when asked for, always the same."""

    number: int
    make: Callable[[int], Example]

    def __len__(self) -> int:
        return self.number

    @overload
    def __getitem__(self, index: int) -> Example: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Example]: ...
    def __getitem__(self, index: int | slice) -> Example | Sequence[Example]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(self.number))]
        if not 0 <= index < self.number:
            raise IndexError(index)
        return self.make(index)


def is_chat(messages: Any) -> bool:
    """Whether this is a list of messages, each with a role and a text."""
    return (
        isinstance(messages, list)
        and bool(messages)
        and all(isinstance(m, dict) and {"role", "content"} <= m.keys() for m in messages)
        and all(isinstance(m["content"], str) for m in messages)
    )


def read_messages(prompt: str) -> list[dict[str, Any]] | None:
    """The chat that a task's prompt spells as a JSON list of messages; None if it is plain text."""
    if not prompt.lstrip().startswith("["):
        return None
    try:
        messages = json.loads(prompt)
    except ValueError:
        return None
    return messages if is_chat(messages) else None


class Constraint(Protocol):
    """Which tokens may come next, for many rows at once; it follows the rows as they grow."""

    def legal(self) -> Bools:
        """[rows, V]: what each row may choose now."""
        ...

    def advance(self, tokens: Ints) -> None:
        """Each row chose its token. A row that ended may be told its end again until it is dropped."""
        ...

    def keep(self, rows: Ints) -> None:
        """Only these rows go on, in this order."""
        ...


@dataclass(frozen=True)
class Tables:
    """An automaton with a counter: a token is legal if its state and, by the state's role, its count allow it."""

    transitions: NDArray[np.int32]  # [states, V] where each token leads
    legal: Bools  # [states, V]
    role: NDArray[np.int32]  # [states]
    limits: Bools  # [roles, counts, V]
    counts: Ints  # [V] what each token adds to the counter


@runtime_checkable
class TabledConstraint(Constraint, Protocol):
    """A constraint that is nothing but look-ups, so that a device can follow it by itself."""

    @property
    def tables(self) -> Tables:
        """The same object for every constraint of a language, where it is large."""
        ...

    @property
    def places(self) -> tuple[Ints, Ints]:
        """[rows] each: the state and the count where every row stands."""
        ...


class Language(Protocol):
    """How an answer is written in a closed vocabulary."""

    @property
    def vocabulary(self) -> Sequence[str]:
        """The spelling of each token."""
        ...

    @property
    def end(self) -> int:
        """The token that ends an answer."""
        ...

    @property
    def max_tokens(self) -> int:
        """The longest answer, its end token included."""
        ...

    def encode_prompt(self, prompt: str) -> list[int]:
        """The tokens that pose a task; at least one."""
        ...

    def encode(self, answer: str) -> list[int]:
        """The tokens of an answer, its end token included; LanguageError if it has none."""
        ...

    def decode(self, tokens: Sequence[int]) -> str:
        """The answer that tokens spell; an end token is allowed and adds nothing."""
        ...

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        """A fresh constraint with one row a task."""
        ...


@runtime_checkable
class FillLanguage(Language, Protocol):
    """A language whose prompts are texts with blanks and whose answers are those texts, filled in."""

    @property
    def mask(self) -> int:
        """The token that stands for a blank in a prompt."""
        ...

    @property
    def fillable(self) -> Bools:
        """[V]: what may be filled in; no special token."""
        ...

    def fill_in(self, prompt: str, answer: str) -> list[int]:
        """The prompt's tokens with its blanks as in the answer; LanguageError if that is not the same text."""
        ...


Kind = Literal["plain", "blank", "right", "wrong"]


@dataclass(frozen=True)
class Passage:
    """A text for a person to read, in pieces that a display may color."""

    title: str
    pieces: Sequence[tuple[str, Kind]]


@dataclass(frozen=True)
class Critic:
    """A sequence classifier that reads answers. The training process asks it, for worlds do without torch."""

    model: str  # a folder, or a name on a hub
    label: str = ""  # whose probability is the reward; "": the logit of a model that has but one
    reads: str = "answer"  # or "both": the prompt before it, in the model's chat template where it has one
    batch: int = 32  # texts at once

    def __post_init__(self) -> None:
        if self.reads not in ("answer", "both"):
            raise ValueError(f"a classifier reads 'answer' or 'both', not {self.reads!r}")
        if self.batch < 1:
            raise ValueError(f"a classifier's batch is {self.batch}; write 1 or more")


class World(Protocol):
    """What is asked and how it is judged. Subclass it; its dataclass fields are its settings."""

    name: str
    catalog: str = "found.jsonl"  # the file of a run folder that keeps every distinct success
    compares_siblings: bool = False  # whether a score depends on the group's other answers: then it is judged whole

    def tasks(self, split: str) -> Sequence[Task]:
        """The tasks of 'train' or 'heldout'; the two share none."""
        ...

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        """A verdict on each answer. A bad answer is a low Score, never an exception."""
        ...

    def critics(self) -> Mapping[str, Critic]:
        """Rewards by name that a model gives; none by default."""
        return {}

    def complete(self, score: Score, verdicts: Mapping[str, float]) -> Score:
        """A score of ours with what the critics said."""
        return score

    def language(self) -> Language | None:
        """The closed vocabulary, for a policy trained from scratch; None if there is none."""
        return None

    def instruction(self, task: Task) -> str:
        """What is asked of a language model, which knows nothing of this world; by default the task's prompt."""
        return task.prompt

    def schema(self) -> Mapping[str, Any] | None:
        """The JSON schema of answers, for a language model with grammar = "world"; None if they are not JSON."""
        return None

    def examples(self) -> Sequence[Example]:
        """Answers to start from, and the world's own test."""
        return ()

    def solution(self, task: Task) -> str | None:
        """An answer known to be right, where there is one."""
        return None

    def picture(self, task: Task, answer: str) -> Image | None:
        """What a person would want to see of this answer."""
        return None

    def passages(self, task: Task, answer: str) -> Sequence[Passage]:
        """What a person would want to read of this answer."""
        return ()

    def relabel(self, task: Task, answer: str) -> Task | None:
        """The training task that this answer to another would have solved, if there is one."""
        return None

    def phases(self) -> Sequence[Mapping[str, Any]]:
        """A curriculum that suits this world, as tables of a configuration; none by default."""
        return ()

    def explain(self, task: Task, answer: str) -> str:
        """The verdict on an answer worked out for a person; empty if the score says it all."""
        return ""

    def record(self, task: Task, answer: str) -> Mapping[str, Any]:
        """What a run's catalog keeps of a success, besides its identity."""
        return {"task": task.id, "answer": answer}


def trace_legal(language: Language, tasks: Sequence[Task], answers: Sequence[Sequence[int]]) -> list[Bits | None]:
    """The packed masks met on the way of each answer; None for an answer with an illegal token."""
    constraint = language.constraint(tasks)
    masks: list[list[Bits]] = [[] for _ in answers]
    rows = list(range(len(answers)))
    while rows:
        place = len(masks[rows[0]])  # all rows that are left are at the same one
        token = np.array([answers[row][place] for row in rows])
        legal = constraint.legal()
        for row, packed in zip(rows, pack_bits(legal), strict=True):
            masks[row].append(packed)
        allowed = legal[np.arange(len(rows)), token]
        for row, fine in zip(rows, allowed, strict=True):
            if not fine:
                masks[row].clear()
        longer = np.array([len(answers[row]) > place + 1 for row in rows])
        kept = np.flatnonzero(allowed & longer)
        constraint.keep(kept)
        constraint.advance(token[kept])
        rows = [rows[i] for i in kept]
    return [np.stack(m) if m else None for m in masks]


@dataclass
class FixedConstraint:
    """The same tokens are legal at every place."""

    allowed: Bools  # [V]
    rows: int

    def legal(self) -> Bools:
        return np.broadcast_to(self.allowed, (self.rows, len(self.allowed)))

    def advance(self, tokens: Ints) -> None:
        assert len(tokens) == self.rows

    def keep(self, rows: Ints) -> None:
        self.rows = len(rows)

    @property
    def tables(self) -> Tables:
        everything = np.ones((1, 1, len(self.allowed)), np.bool_)
        nowhere = np.zeros((1, len(self.allowed)), np.int32)
        return Tables(nowhere, self.allowed[None], np.zeros(1, np.int32), everything, nowhere[0].astype(np.int64))

    @property
    def places(self) -> tuple[Ints, Ints]:
        return np.zeros(self.rows, np.int64), np.zeros(self.rows, np.int64)


@dataclass(frozen=True)
class Characters:
    """Answers spelled in a small alphabet; prompts may use further characters."""

    alphabet: str
    max_tokens: int
    prompt_alphabet: str = "abcdefghijklmnopqrstuvwxyz0123456789 "

    @property
    def vocabulary(self) -> Sequence[str]:
        extra = [c for c in dict.fromkeys(self.prompt_alphabet) if c not in self.alphabet]
        return ["<end>", "<ask>", *dict.fromkeys(self.alphabet), *extra]

    @property
    def end(self) -> int:
        return 0

    def encode_prompt(self, prompt: str) -> list[int]:
        return [1, *self._spell(prompt, len(self.vocabulary), "prompt")]

    def encode(self, answer: str) -> list[int]:
        if len(answer) >= self.max_tokens:
            raise LanguageError(f"the answer has {len(answer)} characters; write at most {self.max_tokens - 1}")
        return [*self._spell(answer, 2 + len(dict.fromkeys(self.alphabet)), "answer"), self.end]

    def decode(self, tokens: Sequence[int]) -> str:
        vocabulary = self.vocabulary
        return "".join(vocabulary[t] for t in tokens if t != self.end)

    def constraint(self, tasks: Sequence[Task]) -> Constraint:
        allowed = np.zeros(len(self.vocabulary), np.bool_)
        allowed[: 2 + len(dict.fromkeys(self.alphabet))] = True
        allowed[1] = False
        return FixedConstraint(allowed, len(tasks))

    def _spell(self, text: str, known: int, what: str) -> list[int]:
        ids = {c: i for i, c in enumerate(self.vocabulary[:known])}
        for place, c in enumerate(text):
            if c not in ids:
                raise LanguageError(f"character {place + 1} of the {what}, {c!r}, is not in the alphabet")
        return [ids[c] for c in text]
