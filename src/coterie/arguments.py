"""A command line taken apart."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

FLAGS = (
    "quiet",
    "json",
    "help",
    "version",
    "rejection",
    "rollback",
    "explain",
    "eval_only",
    "merge",
    "profile",
    "chat",
    "use_curriculum",
    "use_priority_buffer",
)


class UsageError(ValueError):
    """A command that cannot be meant; the message says what to write."""


@dataclass(frozen=True)
class Words:
    """A command line taken apart: what stands alone, and what has a name."""

    alone: list[str]
    named: dict[str, str]

    def pop(self, name: str, default: str | None = None) -> str | None:
        return self.named.pop(name, default)

    def pop_number(self, name: str, default: int | None = None) -> int | None:
        value = self.named.pop(name, None)
        if value is None:
            return default
        if not value.isdigit() or int(value) == 0:
            raise UsageError(f"--{name} takes a whole number from 1, not {value!r}")
        return int(value)

    def pop_flag(self, name: str) -> bool:
        return self.named.pop(name, "false") not in ("false", "0")

    def one(self, what: str) -> str:
        """The single word that must stand alone."""
        if len(self.alone) != 1:
            raise UsageError(f"name one {what}, as in `{what}`" if not self.alone else f"one {what}, not {self.alone}")
        return self.alone[0]

    def finish(self, command: str) -> None:
        if self.named:
            raise UsageError(
                f"coterie {command} has no option --{next(iter(self.named))}; see coterie {command} --help"
            )


def take_apart(argv: Sequence[str]) -> Words:
    """--name value, --name=value and name=value; a flag takes no value."""
    alone: list[str] = []
    named: dict[str, str] = {}
    rest = list(argv)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            if "=" in word and word.split("=")[0].replace("_", "").isalpha():
                word = f"--{word}"
            else:
                alone.append(word)
                continue
        name, equals, value = word[2:].partition("=")
        name = name.replace("-", "_")
        if not equals:
            if name in FLAGS:
                value = "true"
            elif not rest:
                raise UsageError(f"{word} needs a value")
            else:
                value = rest.pop(0)
        named[name] = value
    return Words(alone, named)
