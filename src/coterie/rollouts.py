"""What crosses the arrows of the design: tasks, completions, scores, groups and batches.

Legend of shapes: P tasks, G answers a task, N = P x G rows, T tokens, V vocabulary,
A actions (tokens the policy chose). One alignment rule: entry t is about tokens[t].
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Bits = NDArray[np.uint8]


class Finish(StrEnum):
    """Why an answer ended: it said so, it hit the length limit, or nothing legal was left."""

    STOP = "stop"
    LENGTH = "length"
    DEAD_END = "dead_end"


@dataclass(frozen=True)
class Task:
    """One thing to answer. `spec` is read only by the world that made it; a curriculum chooses by `tags`."""

    id: str
    prompt: str
    spec: Mapping[str, Any] = field(default_factory=dict)
    tags: Mapping[str, float | str] = field(default_factory=dict)


@dataclass(frozen=True)
class Completion:
    """One sampled answer, with what is needed to train on exactly what was sampled."""

    tokens: Ints  # [T] prompt and answer
    chosen: Bools  # [T] which tokens were actions
    logprobs: Floats  # [T] under the distribution really sampled; 0 where not chosen
    legal: Bits | None  # [A, ceil(V/8)] packed: what each action could have been
    text: str
    finish: Finish
    passes: Ints | None = None  # [T] which pass committed each chosen token; None: all in one, or one by one


@dataclass(frozen=True)
class Score:
    """A world's verdict on one answer; `fault` is set when the world itself failed on it.

    `identity` is the same for successful answers that differ only in what does not matter.
    """

    total: float
    parts: Mapping[str, float] = field(default_factory=dict)
    valid: bool = True
    success: bool = False
    note: str = ""
    fault: str = ""
    identity: str = ""


@dataclass(frozen=True)
class Group:
    """A task and its G sampled answers."""

    task: Task
    completions: Sequence[Completion]

    @property
    def answers(self) -> list[str]:
        return [completion.text for completion in self.completions]


def as_groups(
    tasks: Sequence[Task], group_size: int, drawn: Iterable[tuple[int, Completion]]
) -> Iterator[tuple[int, Group]]:
    """(place, group) as soon as its last answer is there; answers come with their row, siblings side by side."""
    waiting: dict[int, dict[int, Completion]] = defaultdict(dict)
    for row, completion in drawn:
        place, sibling = divmod(row, group_size)
        waiting[place][sibling] = completion
        if len(waiting[place]) == group_size:
            siblings = waiting.pop(place)
            yield place, Group(tasks[place], [siblings[i] for i in range(group_size)])


@dataclass(frozen=True)
class Batch:
    """All rows of one step, padded on the right."""

    tokens: Ints  # [N, T]
    lengths: Ints  # [N]
    chosen: Bools  # [N, T]
    logprobs: Floats  # [N, T] of the sampler
    advantages: Floats  # [N]
    legal: Bits | None = None  # [A, ceil(V/8)], rows in the order of chosen
    reference: Floats | None = None  # [N, T] log-probabilities of the reference
    passes: Ints | None = None  # [N, T] which pass committed each chosen token

    @property
    def num_rows(self) -> int:
        return len(self.lengths)

    def rows(self, index: Ints) -> Batch:
        """The same step with only these rows, in this order, and no wider than they need."""
        width = int(self.lengths[index].max())
        legal = self.legal
        if legal is not None:
            ends = np.cumsum(self.chosen.sum(1))
            starts = ends - self.chosen.sum(1)
            legal = np.concatenate([legal[starts[i] : ends[i]] for i in index])
        return Batch(
            tokens=self.tokens[index, :width],
            lengths=self.lengths[index],
            chosen=self.chosen[index, :width],
            logprobs=self.logprobs[index, :width],
            advantages=self.advantages[index],
            legal=legal,
            reference=None if self.reference is None else self.reference[index, :width],
            passes=None if self.passes is None else self.passes[index, :width],
        )


def pack_bits(mask: Bools) -> Bits:
    """[..., V] bool to [..., ceil(V/8)] bytes."""
    return np.packbits(mask, axis=-1)


def unpack_bits(bits: Bits, vocabulary: int) -> Bools:
    """The inverse of `pack_bits`."""
    return np.unpackbits(bits, axis=-1, count=vocabulary).astype(np.bool_)


def make_batch(groups: Sequence[Group], advantages: NDArray[np.floating[Any]]) -> Batch:
    """Lay the rows of all groups under each other; advantages are [P, G]."""
    completions = [c for group in groups for c in group.completions]
    lengths = np.array([len(c.tokens) for c in completions])
    shape = (len(completions), int(lengths.max()))
    tokens, chosen = np.zeros(shape, np.int64), np.zeros(shape, np.bool_)
    logprobs = np.zeros(shape, np.float32)
    passes = np.zeros(shape, np.int64) if any(c.passes is not None for c in completions) else None
    for row, c in enumerate(completions):
        if passes is not None and c.passes is not None:
            passes[row, : lengths[row]] = c.passes
        tokens[row, : lengths[row]] = c.tokens
        chosen[row, : lengths[row]] = c.chosen
        logprobs[row, : lengths[row]] = c.logprobs
    masks = [c.legal for c in completions if c.legal is not None]
    assert len(masks) in (0, len(completions)), "either every completion has legal masks or none"
    return Batch(
        tokens=tokens,
        lengths=lengths,
        chosen=chosen,
        logprobs=logprobs,
        advantages=np.asarray(advantages, np.float32).reshape(-1),
        legal=np.concatenate(masks) if masks else None,
        passes=passes,
    )
