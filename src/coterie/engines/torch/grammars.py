"""Grammars over a language model's own tokens: a JSON schema, a regular expression, or Lark; by llguidance."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.engines.torch.pretrained import ModelError
from coterie.rollouts import Bools, Ints


class Grammar:
    """A grammar, ready for as many answers as are wanted."""

    def __init__(self, written: str, tokenizer: Any, vocabulary: int, ends: Sequence[int]) -> None:
        guidance = importlib.import_module("llguidance")
        self.vocabulary, self.end = vocabulary, ends[0]
        spelled = importlib.import_module("llguidance.hf").from_tokenizer(
            tokenizer, n_vocab=vocabulary, eos_token=list(ends)
        )
        try:
            grammar = compile_grammar(guidance.LLMatcher, written)
        except (OSError, ValueError) as error:
            raise ModelError(f"grammar = {written!r} cannot be used: {error}") from None
        if told := guidance.LLMatcher.validate_grammar(grammar, spelled):
            raise ModelError(f"grammar = {written!r} cannot be used: {told.splitlines()[0]}")
        self.fresh = guidance.LLMatcher(spelled, grammar)

    def constraint(self, num_rows: int) -> GrammarConstraint:
        """For answers that have not begun yet."""
        return GrammarConstraint([self.fresh.deep_copy() for _ in range(num_rows)], self.vocabulary, self.end)


def compile_grammar(matcher: Any, written: str) -> str:
    """A file's name says what is in it; what begins with a brace is a JSON schema, all else a regular expression."""
    if written.lstrip().startswith("{"):
        return str(matcher.grammar_from_json_schema(written))
    suffix = Path(written).suffix
    if suffix == ".json":
        return str(matcher.grammar_from_json_schema(Path(written).read_text()))
    if suffix == ".lark":
        return str(matcher.grammar_from_lark(Path(written).read_text()))
    return str(matcher.grammar_from_regex(written))


class GrammarConstraint:
    """Which tokens may come next in each answer."""

    def __init__(self, matchers: Sequence[Any], vocabulary: int, end: int) -> None:
        self.matchers, self.vocabulary, self.end = list(matchers), vocabulary, end

    def legal(self) -> Bools:
        found = np.zeros((len(self.matchers), self.vocabulary), np.bool_)
        for row, matcher in enumerate(self.matchers):
            if matcher.is_error():
                continue  # nothing legal is left: a dead end
            if matcher.is_stopped():
                found[row, self.end] = True
                continue
            bits = np.frombuffer(matcher.compute_bitmask(), np.uint8)
            found[row] = np.unpackbits(bits, bitorder="little", count=self.vocabulary)
        return found

    def advance(self, tokens: Ints) -> None:
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
            if not matcher.is_stopped():
                matcher.consume_token(token)

    def keep(self, rows: Ints) -> None:
        self.matchers = [self.matchers[row] for row in rows]
