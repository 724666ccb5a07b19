"""Lays rows end to end, without padding: one row of tokens, in which a prompt comes once for all its answers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from coterie.rollouts import Batch, Ints


@dataclass(frozen=True)
class Packed:
    """First the prompts that several answers share, then those answers, then rows that share nothing.

    An answer sees its prompt and itself; it ends before its last chosen token, from which nothing is predicted.
    """

    tokens: Ints  # [T]
    positions: Ints  # [T] an answer goes on after its prompt
    sources: Ints  # [A] where each chosen token is predicted from, in the order of Batch.chosen
    trunks: list[int] = field(default_factory=list)  # lengths of shared prompts
    branches: list[list[int]] = field(default_factory=list)  # and of what follows each
    singles: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Rows:
    """What packing asks of a batch: where the prompt of each row ends, and where its last prediction is made."""

    batch: Batch
    firsts: Ints  # [N] the first chosen place
    lasts: Ints  # [N] the last one
    families: list[list[int]]  # rows whose prompts are the same; rows in which nothing was chosen are in none


def read_rows(batch: Batch, share: bool = True) -> Rows:
    """Find siblings by their prompts: whatever comes before the first chosen token."""
    chosen = batch.chosen
    firsts, lasts = chosen.argmax(1), chosen.shape[1] - 1 - chosen[:, ::-1].argmax(1)
    families: dict[bytes | int, list[int]] = {}
    for row in np.flatnonzero(chosen.any(1)).tolist():
        prompt = batch.tokens[row, : firsts[row]]
        families.setdefault(prompt.tobytes() if share else row, []).append(row)
    return Rows(batch, firsts, lasts, list(families.values()))


def split_packed(batch: Batch, max_tokens: int, share: bool = True) -> Iterator[Ints]:
    """Rows in parts of at most max_tokens, siblings together; a prompt counts once a part."""
    rows = read_rows(batch, share)
    part: list[int] = []
    count = 0
    for family in rows.families:
        prompt_is_in = False
        for row in family:
            answer, prompt = int(rows.lasts[row] - rows.firsts[row]), int(rows.firsts[row])
            if part and count + answer + (0 if prompt_is_in else prompt) > max_tokens:
                yield np.array(part)
                part, count, prompt_is_in = [], 0, False
            part.append(row)
            count += answer + (0 if prompt_is_in else prompt)
            prompt_is_in = True
    if part:
        yield np.array(part)


def pack(batch: Batch, share: bool = True) -> Packed:
    """The batch as one row of tokens."""
    rows = read_rows(batch, share)
    answers = rows.lasts - rows.firsts
    shared = [family for family in rows.families if len(family) > 1 and answers[family].any()]
    alone = [family for family in rows.families if len(family) == 1 or not answers[family].any()]
    pieces: list[tuple[int, int, int]] = []  # row, from, to
    start = 0
    ends = np.zeros(batch.num_rows, np.int64)  # where each row's prompt ends in the packed row
    begins = np.zeros(batch.num_rows, np.int64)  # and where its answer begins

    def lay(row: int, begin: int, end: int) -> int:
        nonlocal start
        pieces.append((row, begin, end))
        start += end - begin
        return start

    for family in shared:
        ends[family] = lay(family[0], 0, int(rows.firsts[family[0]]))
    for family in shared:
        for row in family:
            begins[row] = start
            lay(row, int(rows.firsts[row]), int(rows.lasts[row]))
    for family in alone:
        first = int(rows.firsts[family[0]])
        begins[family] = ends[family] = start + first
        lay(family[0], 0, first + int(answers[family[0]]))
    places, owners = np.nonzero(batch.chosen)[::-1]
    after = places - rows.firsts[owners]
    return Packed(
        tokens=np.concatenate([batch.tokens[row, begin:end] for row, begin, end in pieces]),
        positions=np.concatenate([np.arange(begin, end) for _, begin, end in pieces]),
        # The prompt's last token predicts the first of every answer to it.
        sources=np.where(after == 0, ends[owners] - 1, begins[owners] + after - 1),
        trunks=[int(rows.firsts[family[0]]) for family in shared],
        branches=[[int(n) for n in answers[family] if n] for family in shared],
        singles=[int(rows.lasts[family[0]]) for family in alone],
    )
