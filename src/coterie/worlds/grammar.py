"""A grammar compiled to tables: the legal tokens of all rows at once are a look-up.

It is an automaton with one counter: a state says which tokens may come, a token may add to the counter, and states
with a role are further limited by what has been counted (as many names as there are things, no more things than
there are names).
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from coterie.rollouts import Bools, Ints
from coterie.worlds.base import LanguageError, Tables

State = Hashable


@dataclass(frozen=True)
class Grammar:
    """Spellings and tables. Illegal transitions lead to state 0, where nothing is legal; role 0 limits nothing."""

    vocabulary: tuple[str, ...]
    start: int
    tables: Tables

    def walk(self, words: Sequence[str]) -> tuple[list[int], int, int]:
        """The tokens of a beginning, and the state and count it leads to; LanguageError where it goes wrong."""
        ids = {word: i for i, word in enumerate(self.vocabulary)}
        tables, state, count, tokens = self.tables, self.start, 0, []
        for place, word in enumerate(words, 1):
            allowed = tables.legal[state] & tables.limits[tables.role[state], count]
            token = ids.get(word, -1)
            if token < 0 or not allowed[token]:
                choice = [self.vocabulary[i] for i in np.flatnonzero(allowed)]
                told = " or ".join(choice[:8]) + (" or …" if len(choice) > 8 else "") if choice else "nothing more"
                raise LanguageError(f"word {place} is {word!r}; write {told}")
            tokens.append(token)
            state, count = int(tables.transitions[state, token]), count + int(tables.counts[token])
        return tokens, state, count

    def constraint(self, states: Sequence[int], counts: Sequence[int]) -> GrammarConstraint:
        return GrammarConstraint(self.tables, np.array(states, np.int64), np.array(counts, np.int64))


@dataclass
class GrammarConstraint:
    """Follows many rows through the tables."""

    tables: Tables
    state: Ints
    count: Ints

    @property
    def places(self) -> tuple[Ints, Ints]:
        return self.state, self.count

    def legal(self) -> Bools:
        t = self.tables
        return np.asarray(t.legal[self.state] & t.limits[t.role[self.state], self.count])

    def advance(self, tokens: Ints) -> None:
        self.state = self.tables.transitions[self.state, tokens].astype(np.int64)
        self.count = self.count + self.tables.counts[tokens]

    def keep(self, rows: Ints) -> None:
        self.state, self.count = self.state[rows], self.count[rows]


def compile_grammar(
    vocabulary: Sequence[str],
    start: State,
    follow: Callable[[State], Mapping[str, State]],
    role_of: Callable[[State], str],
    limits: Mapping[str, Callable[[int], Sequence[str]]],
    num_counts: int,
    counts: Mapping[str, int],
) -> Grammar:
    """Explore all states from the start. `limits` gives, for a role and a count, the tokens that are closed."""
    ids = {word: i for i, word in enumerate(vocabulary)}
    numbers: dict[State, int] = {start: 1}
    queue, edges = [start], list[tuple[int, int, int]]()
    while queue:
        state = queue.pop()
        for word, following in follow(state).items():
            if following not in numbers:
                numbers[following] = len(numbers) + 1
                queue.append(following)
            edges.append((numbers[state], ids[word], numbers[following]))
    shape = (len(numbers) + 1, len(vocabulary))
    transitions = np.zeros(shape, np.int32)
    source, token, target = np.array(edges).T
    transitions[source, token] = target
    roles = ["", *limits]
    role = np.zeros(shape[0], np.int32)
    for state, number in numbers.items():
        role[number] = roles.index(role_of(state))
    open_ = np.ones((len(roles), num_counts, len(vocabulary)), np.bool_)
    for name, closed in limits.items():
        for count in range(num_counts):
            open_[roles.index(name), count, [ids[word] for word in closed(count)]] = False
    added = np.zeros(len(vocabulary), np.int64)
    for word, amount in counts.items():
        added[ids[word]] = amount
    return Grammar(tuple(vocabulary), 1, Tables(transitions, transitions > 0, role, open_, added))
