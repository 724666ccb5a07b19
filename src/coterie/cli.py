"""The command line: takes it apart, runs the command, and answers mistakes with one sentence."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from coterie import __version__
from coterie.aliases import ALIASES
from coterie.arguments import UsageError, Words, take_apart
from coterie.commands import COMMANDS
from coterie.config import ConfigError, GRPOConfig
from coterie.engines.base import OutOfStep
from coterie.extras import MissingExtra
from coterie.runs.checkpoints import CheckpointError
from coterie.worlds.base import LanguageError
from coterie.worlds.bricks.export import ExportError
from coterie.worlds.bricks.structure import BrickError
from coterie.worlds.load import WORLDS, WorldError, world_fields
from coterie.worlds.machines.export import MachineExportError

HELP = """\
Coterie trains generators to make things that can be checked.

  coterie train WORLD | FILE.toml | my_world.py  [--name value …]
  coterie train --resume RUN                     go on with a run that was stopped or killed
  coterie pretrain WORLD                         imitate the world's examples, and nothing else
  coterie train-judge WORLD                      a judge of filled-in texts, for train --judge-checkpoint
  coterie eval RUN                               judge a run's policy on held-out tasks
  coterie sample RUN --prompt TEXT               let it answer, and see what came of it; or chat with it
  coterie score WORLD FILE… [--json]             judge answers from files
  coterie check WORLD | my_world.py              test a world against the contract
  coterie plot RUN                               draw a run's curves
  coterie explain WORLD | FILE.toml              a configuration in words: arithmetic, formulas, memory, warnings
  coterie tune FILE.toml --trials N              search settings over named ranges
  coterie export FILE --to OUT.ldr|.html|.m …    a brick structure, a theory or a machine for others
  coterie theories RUN                           list and search the theories that a run found
  coterie demo                                   train bricks on this machine and show the result

Worlds: {worlds}. `coterie COMMAND --help` says more; `coterie --version` tells the version.
"""

TRAIN_HELP = """\
coterie train WORLD | FILE.toml | my_world.py [--name value …]
coterie train --resume RUN [--name value …]

  coterie train bricks --steps 200 --group-size 8 --out runs/first
  coterie train bricks.toml --seed 1
  coterie train my_world.py group_size=16 kl_coef=0.05
  coterie train --resume runs/first

Names may be written with dashes or underscores, as --name value, --name=value or name=value.
--quiet prints nothing but errors. --profile tells where the time of a step went, and writes it down.
^C finishes the step, saves, and says how to go on.

"""


# What a user can cause; anything else is ours, and shows its traceback.
MISTAKES = (
    UsageError,
    ConfigError,
    WorldError,
    CheckpointError,
    LanguageError,
    BrickError,
    ExportError,
    MachineExportError,
    OutOfStep,
    MissingExtra,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; what a user can cause is one sentence and exit code 2."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    command = arguments.pop(0) if arguments else "--help"
    if command in ("--version", "version"):
        print(f"coterie {__version__}")
        return 0
    if command in ("--help", "-h", "help"):
        print(HELP.format(worlds=", ".join(WORLDS)), end="")
        return 0
    arguments = ["--help" if word == "-h" else word for word in arguments]
    try:
        if command not in COMMANDS:
            raise UsageError(f"there is no command {command!r}; write one of {', '.join(COMMANDS)}")
        words = take_apart(arguments)
        if words.pop_flag("help"):
            print(help_of(command, words), end="")
            return 0
        return COMMANDS[command](words)
    except MISTAKES as error:
        print(f"coterie: {error}", file=sys.stderr)
        return 2
    except BrokenPipeError:  # whoever read our output, such as head, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except KeyboardInterrupt:
        print("coterie: stopped", file=sys.stderr)
        return 130


def help_of(command: str, words: Words) -> str:
    """A command's own help; for train, every setting with its default."""
    if command != "train":
        return f"{(COMMANDS[command].__doc__ or '').strip()}\n"
    lines = []
    for name, field in GRPOConfig.model_fields.items():
        others = [alias for alias, meant in ALIASES.items() if meant == name]
        also = f" (also: {', '.join(others)})" if others else ""
        default = "" if field.default is None or name == "world_options" else f" [{field.default}]"
        lines.append(f"  --{name.replace('_', '-'):<20} {field.description}{default}{also}")
    for world in words.alone[:1] or ["bricks"]:
        if not world.endswith(".toml"):
            lines.append(f"\nSettings of the world {world}:")
            lines += [f"  --{name.replace('_', '-'):<20} [{value}]" for name, value in world_fields(world).items()]
    return TRAIN_HELP + "\n".join(lines) + "\n"


if __name__ == "__main__":
    sys.exit(main())
