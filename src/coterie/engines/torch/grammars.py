"""Grammars over a language model's own tokens: a JSON schema, a regular expression, or Lark; by llguidance."""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from coterie.engines.torch.pretrained import ModelError
from coterie.rollouts import Bits, Bools, Ints, unpack_bits

BACKWARDS = np.array(
    [int(f"{byte:08b}"[::-1], 2) for byte in range(256)], np.uint8
)  # llguidance's first bit is the lowest


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
        self.fresh, self.together = guidance.LLMatcher(spelled, grammar), guidance.LLExecutor()

    def constraint(self, num_rows: int) -> GrammarConstraint:
        """For answers that have not begun yet."""
        matchers = [self.fresh.deep_copy() for _ in range(num_rows)]
        return GrammarConstraint(matchers, self.together, self.vocabulary, self.end)


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

    def __init__(self, matchers: Sequence[Any], together: Any, vocabulary: int, end: int) -> None:
        self.matchers, self.together, self.vocabulary, self.end = list(matchers), together, vocabulary, end

    def legal(self) -> Bools:
        return unpack_bits(self.packed(), self.vocabulary)

    def packed(self) -> Bits:
        """What is legal, packed, found for all rows at once; a row in error has nothing left: a dead end."""
        words = np.zeros((len(self.matchers), -(-self.vocabulary // 32)), np.int32)
        going = [(m, row) for row, m in enumerate(self.matchers) if not m.is_error() and not m.is_stopped()]
        if going:
            self.together.unsafe_compute_mask_ptr(going, words.ctypes.data, words.shape[1] * 4, len(words))
        bits = BACKWARDS[words.view(np.uint8)[:, : -(-self.vocabulary // 8)]]
        bits[:, -1] &= (0xFF << -self.vocabulary % 8) & 0xFF  # nothing beyond the vocabulary
        for row, matcher in enumerate(self.matchers):
            if matcher.is_stopped() and not matcher.is_error():
                bits[row] = 0
                bits[row, self.end // 8] = 0x80 >> self.end % 8
        return bits

    def advance(self, tokens: Ints) -> None:
        for matcher, token in zip(self.matchers, tokens.tolist(), strict=True):
            if not matcher.is_stopped():
                matcher.consume_token(token)

    def keep(self, rows: Ints) -> None:
        self.matchers = [self.matchers[row] for row in rows]
