"""Prompts and their columns from a file, and prompts as chat messages."""

from __future__ import annotations

import csv
import hashlib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from coterie.extras import require

Row = Mapping[str, Any]
ROLES = ("system", "user", "assistant", "tool", "developer")
LONGEST_TAG = 40
PLAIN_NUMBER = re.compile(r"-?[0-9]{1,15}(\.[0-9]{1,15})?")


def read_rows(path: Path | str, prompt_column: str) -> list[dict[str, Any]]:
    """All rows of a JSON, JSON lines, CSV or parquet file; ValueError says which row is wrong, and how."""
    path = Path(path)
    readers = {".json": _json, ".jsonl": _json_lines, ".csv": _csv, ".parquet": _parquet}
    if path.suffix not in readers:
        raise ValueError(f"{path} does not say its format; end its name in {', '.join(readers)}")
    if not path.is_file():
        raise ValueError(f"there is no file {path}")
    rows = []
    for number, row in enumerate(readers[path.suffix](path), 1):
        row = {prompt_column: row} if isinstance(row, str | list) else row
        if problem := _problem(row, prompt_column):
            raise ValueError(f"{path}, row {number}: {problem}")
        rows.append(row)
    if not rows:
        raise ValueError(f"{path} holds no prompts")
    return rows


def _problem(row: Any, prompt_column: str) -> str:
    if not isinstance(row, dict):
        return f"it is {type(row).__name__}, not a prompt or a table of columns"
    if prompt_column not in row:
        return f"there is no column {prompt_column!r}; set prompt_column to one of {', '.join(map(str, row))}"
    prompt = row[prompt_column]
    if isinstance(prompt, str) and prompt.strip():
        return ""
    if isinstance(prompt, list) and prompt and all(map(_is_message, prompt)):
        return ""
    return f"{prompt_column} must be a text or a list of messages with role and content"


def _is_message(message: Any) -> bool:
    return (
        isinstance(message, dict)
        and message.get("role") in ROLES
        and isinstance(message.get("content"), str)
        and all(isinstance(name, str) for name in message)
    )


def _json(path: Path) -> Iterator[Any]:
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from None
    rows = held.get("prompts") if isinstance(held, dict) else held
    if not isinstance(rows, list):
        raise ValueError(f'{path} holds no list of prompts; write {{"prompts": [...]}}')
    yield from rows


def _json_lines(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8") as lines:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                yield json.loads(line)
            except ValueError as error:
                raise ValueError(f"{path}, line {number} is not JSON: {error}") from None


def _csv(path: Path) -> Iterator[Any]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        for row in csv.DictReader(file):
            if None in row or None in row.values():
                raise ValueError(f"{path}: a row has another number of fields than the header: {list(row.values())}")
            yield row


def _parquet(path: Path) -> Iterator[Any]:
    parquet = require("pyarrow.parquet", "data")
    try:
        yield from parquet.read_table(path).to_pylist()
    except (OSError, ValueError) as error:  # pyarrow's own errors are kinds of these
        raise ValueError(f"{path} is no parquet file: {str(error).splitlines()[0]}") from None


def look_up(row: Row, column: str) -> Any:
    """A column's value, with dots for tables within tables (reward_model.ground_truth); None if it is not there."""
    if column in row:
        return row[column]
    value: Any = row
    for name in column.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def prompt_text(prompt: str | Sequence[Mapping[str, str]], system: str) -> str:
    """A prompt as a task has it: plain text, or chat messages as a JSON list where there are any."""
    if isinstance(prompt, str) and not system:
        return prompt
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else [dict(m) for m in prompt]
    if system and messages[0]["role"] != "system":
        messages.insert(0, {"role": "system", "content": system})
    return json.dumps(messages, ensure_ascii=False)


def tags_of(row: Row, without: Sequence[str]) -> dict[str, float | str]:
    """What a curriculum may choose by: numbers and short words. CSV has no types, so texts may be numbers too."""
    tags: dict[str, float | str] = {}
    for name, value in row.items():
        if name in without or isinstance(value, bool):
            continue
        if isinstance(value, int | float) or (isinstance(value, str) and 0 < len(value) <= LONGEST_TAG):
            tags[str(name)] = float(value) if isinstance(value, str) and PLAIN_NUMBER.fullmatch(value) else value
    return tags


def held_out(prompts: Sequence[str], share: float) -> set[str]:
    """The prompts that are held out: always the same ones, at least one and never all; equal prompts stay together."""
    distinct = sorted(set(prompts), key=lambda text: hashlib.sha256(text.encode(errors="replace")).digest())
    if len(distinct) < 2:
        raise ValueError("there is one prompt only; it takes two, one to train on and one to hold out")
    return set(distinct[: min(max(1, round(share * len(distinct))), len(distinct) - 1)])
