"""A conversation with a run's language model."""

from __future__ import annotations

import json
from collections.abc import Callable

from coterie.rollouts import Task
from coterie.training.trainer import Trainer

GREETING = "A line is a message; /reset forgets all, ^D ends."


def chat(trainer: Trainer, read: Callable[[str], str] = input, say: Callable[[str], None] = print) -> None:
    """Every message goes with all that was said before it; the world's system message, if any, comes first."""
    system = trainer.config.world_options.get("system")
    beginning = [{"role": "system", "content": str(system)}] if system else []
    messages = list(beginning)
    say(GREETING)
    while True:
        try:
            line = read("> ").strip()
        except EOFError:
            say("")
            return
        if line == "/reset":
            messages = list(beginning)
            say("(forgotten)")
        elif line:
            messages.append({"role": "user", "content": line})
            [group] = trainer.answer([Task("chat", json.dumps(messages, ensure_ascii=False))], 1)
            messages.append({"role": "assistant", "content": group.answers[0]})
            say(group.answers[0])
