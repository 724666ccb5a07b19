"""Several rewards made one: names, weights, and which must be earned before another counts."""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from coterie.rollouts import Score, Task
from coterie.worlds.base import Critic
from coterie.worlds.prompts.adapters import STYLES, FromFile
from coterie.worlds.prompts.builtin import (
    DOES_NOT_APPLY,
    Diversity,
    Exact,
    Json,
    Length,
    Numeric,
    Regex,
    Repetition,
    Reward,
    Schema,
    Verdict,
    Xml,
)
from coterie.worlds.prompts.gym import Gym
from coterie.worlds.prompts.programs import Code

# Written out by hand. `format` is a regex that asks for <answer>…</answer> at the end unless it is given another.
KINDS: dict[str, type[Any]] = {
    "exact": Exact,
    "numeric": Numeric,
    "regex": Regex,
    "format": Regex,
    "json": Json,
    "schema": Schema,
    "xml": Xml,
    "length": Length,
    "repetition": Repetition,
    "diversity": Diversity,
    "code": Code,
    "gym": Gym,
    "function": FromFile,
    "classifier": Critic,
}
# What a table may say of any reward, and what others call it.
OF_EVERY_REWARD = ("name", "kind", "weight", "needs", "passes_at")
OTHER_NAMES = {"gate": "needs", "requires": "needs", "type": "kind", "file": "function", "adapter": "style"}
COMPACT = re.compile(
    r"(?:(?P<style>\w+):)??(?P<what>[^:\s]+\.py:\w+|\w+)"
    r"(?::(?P<weight>\d*\.?\d+(?:[eE]-?\d+)?))?(?::(?P<needs>[A-Za-z]\w*))?"
)


@dataclass(frozen=True)
class Part:
    """One reward by name. It counts for 0 until the reward it `needs` has come to that one's `passes_at`."""

    name: str
    reward: Reward | Critic
    weight: float = 1.0
    needs: str = ""
    passes_at: float = 1.0


@dataclass(frozen=True)
class Mixture:
    """The weighted mean of the rewards that apply to an answer.

    Success: every reward that another one needs has passed, and so has the main one, which is the heaviest (the
    first of equals).
    """

    parts: Sequence[Part]

    def __post_init__(self) -> None:
        names = [part.name for part in self.parts]
        for part in self.parts:
            if names.count(part.name) > 1:
                raise ValueError(f"there are two rewards {part.name!r}; give one another name")
            if part.weight < 0:
                raise ValueError(f"the reward {part.name!r} weighs {part.weight}; write 0 or more")
            if part.needs and part.needs not in names:
                raise ValueError(f"the reward {part.name!r} needs {part.needs!r}, which is not among {names}")
            if part.needs in self.critics:
                raise ValueError(f"the reward {part.name!r} needs {part.needs!r}, a classifier, which is asked last")
            self._gates(part)
        if not any(part.weight for part in self.parts):
            raise ValueError("no reward weighs anything; name at least one, as in: --rewards numeric:1")

    def _gates(self, part: Part) -> list[str]:
        """What must be passed before this one counts, nearest first."""
        by_name = {p.name: p for p in self.parts}
        found: list[str] = []
        while part.needs:
            if part.needs in found:
                raise ValueError(f"rewards that need each other: {', '.join(sorted(found))}")
            found.append(part.needs)
            part = by_name[part.needs]
        return found

    @property
    def main(self) -> Part:
        return max(self.parts, key=lambda part: part.weight)

    @property
    def critics(self) -> dict[str, Critic]:
        """Those that somebody else asks: `complete` takes what they said."""
        return {part.name: part.reward for part in self.parts if isinstance(part.reward, Critic)}

    @property
    def compares_siblings(self) -> bool:
        """Whether a verdict depends on the other answers of the group."""
        # A function that is handed the whole group may compare; verl's is handed one answer at a time.
        return any(
            isinstance(part.reward, Diversity) or (isinstance(part.reward, FromFile) and part.reward.style != "verl")
            for part in self.parts
        )

    def score(self, task: Task, answers: Sequence[str]) -> list[Score]:
        columns = {
            part.name: [DOES_NOT_APPLY] * len(answers)
            if isinstance(part.reward, Critic)
            else part.reward.judge(task, answers)
            for part in self.parts
        }
        return [self._join({name: column[row] for name, column in columns.items()}) for row in range(len(answers))]

    def _join(self, verdicts: Mapping[str, Verdict]) -> Score:
        passed = {p.name: _passes(verdicts[p.name].value, p.passes_at) for p in self.parts}
        values: dict[str, float] = {}
        for part in self.parts:
            value = verdicts[part.name].value
            if value is not None:
                shut = any(passed[gate] is False for gate in self._gates(part))
                values[part.name] = 0.0 if shut else value
        gates = {part.needs for part in self.parts if part.needs}
        open_gates = all(passed[gate] is not False for gate in gates)
        notes = [f"{name}: {v.note}" for name, v in verdicts.items() if v.note]
        if not values and not self.critics:
            notes.append("no reward applies to this task")
        return Score(
            self._mean(values),
            values,
            valid=open_gates,
            success=bool(open_gates and passed[self.main.name]),
            note="; ".join(notes),
        )

    def _mean(self, values: Mapping[str, float]) -> float:
        """Of the rewards that apply, by weight."""
        weight = sum(part.weight for part in self.parts if part.name in values)
        return sum(part.weight * values.get(part.name, 0.0) for part in self.parts) / weight if weight else 0.0

    def complete(self, score: Score, verdicts: Mapping[str, float]) -> Score:
        """A score with what the critics said of its answer."""
        values, success = dict(score.parts), score.success
        passed = {p.name: _passes(values.get(p.name), p.passes_at) for p in self.parts}
        for part in self.parts:
            if part.name in verdicts:
                shut = any(passed[gate] is False for gate in self._gates(part))
                values[part.name] = 0.0 if shut else verdicts[part.name]
                if part is self.main:
                    success = score.valid and values[part.name] >= part.passes_at
        return dataclasses.replace(score, total=self._mean(values), parts=values, success=success)


def _passes(value: float | None, bar: float) -> bool | None:
    """None: it does not apply, and shuts no gate."""
    return None if value is None else value >= bar


@dataclass
class _Table:
    """A reward as it was asked for."""

    name: str
    kind: str
    weight: float = 1.0
    needs: str = ""
    passes_at: float = 1.0
    options: dict[str, Any] = field(default_factory=dict)


def read_rewards(
    asked: str | Sequence[Mapping[str, Any]],
    tables: Mapping[str, Mapping[str, Any]],
    defaults: Mapping[str, Mapping[str, Any]],
) -> Mixture:
    """Rewards from their compact form ("format:0.2, numeric:1:format") or a list of tables.

    `tables` has further settings by name, and is enough alone; `defaults` has options by kind.
    """
    given = (
        [_read_compact(text) for text in filter(None, (t.strip() for t in asked.split(",")))]
        if isinstance(asked, str)
        else [dict(table) for table in asked]
    )
    names = [str(table.get("name", "")) for table in given]
    given = [{**tables.get(name, {}), **table} for name, table in zip(names, given, strict=True)]
    given += [{"name": name, **table} for name, table in tables.items() if name not in names]
    return Mixture([_make_part(_read_table(table), defaults) for table in given])


def _read_compact(text: str) -> dict[str, Any]:
    found = COMPACT.fullmatch(text)
    if found is None or (found["style"] and found["style"] not in STYLES):
        raise ValueError(
            f"the reward {text!r} is not understood; write NAME:WEIGHT:NEEDS (numeric:1:format) or "
            "STYLE:FILE.py:FUNCTION:WEIGHT (trl:mine.py:reward:0.5)"
        )
    table: dict[str, Any] = {"name": found["what"].rpartition(":")[2]}
    if ":" in found["what"]:
        table |= {"kind": "function", "function": found["what"], "style": found["style"] or "ours"}
    if found["weight"]:
        table["weight"] = float(found["weight"])
    if found["needs"]:
        table["needs"] = found["needs"]
    return table


def _read_table(table: Mapping[str, Any]) -> _Table:
    table = dict(table)
    if "name" not in table:
        raise ValueError(f"a reward has no name: {table}; write name = …")
    name = str(table.pop("name"))
    kind = str(table.pop("kind", "function" if "function" in table else name))
    if kind not in KINDS:
        near = difflib.get_close_matches(kind, KINDS, 1)
        hint = f"did you mean {near[0]!r}?" if near else f"write kind = one of {', '.join(KINDS)}"
        raise ValueError(f"there is no reward {kind!r}; {hint}")
    read = _Table(name, kind)
    try:
        read.weight = float(table.pop("weight", 1.0))
        read.passes_at = float(table.pop("passes_at", 1.0))
    except (TypeError, ValueError):
        raise ValueError(f"weight and passes_at of the reward {name!r} must be numbers") from None
    read.needs, read.options = str(table.pop("needs", "")), table
    return read


def _make_part(table: _Table, defaults: Mapping[str, Mapping[str, Any]]) -> Part:
    cls = KINDS[table.kind]
    known = {f.name for f in dataclasses.fields(cls)}
    for option in table.options:
        if option not in known:
            meant = OTHER_NAMES.get(option, "")
            hint = f"write {meant}" if meant in known | set(OF_EVERY_REWARD) else f"it has {', '.join(sorted(known))}"
            raise ValueError(f"the reward {table.name!r} has no option {option!r}; {hint}")
    usual = {name: value for name, value in defaults.get(table.kind, {}).items() if name in known}
    try:
        reward = cls(**{**usual, **table.options})
    except TypeError as error:
        lacking = ", ".join(f.name for f in dataclasses.fields(cls) if _is_required(f) and f.name not in table.options)
        raise ValueError(f"the reward {table.name!r} needs {lacking or error}; write it in its table") from None
    return Part(table.name, reward, table.weight, table.needs, table.passes_at)


def _is_required(option: dataclasses.Field[Any]) -> bool:
    return option.default is dataclasses.MISSING and option.default_factory is dataclasses.MISSING
