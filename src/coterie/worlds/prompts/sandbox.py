"""Runs a program that nobody has read: no network, no files of ours, bounded in every way, gone when it is over."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Any

JAIL = Path(__file__).with_name("jail.py")
START_S = 20.0  # an interpreter may start slowly on a busy machine; the program's own time begins after that


class SandboxRefused(RuntimeError):
    """The kernel offers too little to run a program safely; the message says what to do."""


@dataclass(frozen=True)
class Limits:
    """What a program may use."""

    seconds: float = 2.0
    memory_mb: int = 512
    output_kb: int = 64
    folder_mb: int = 16


@dataclass(frozen=True)
class Outcome:
    """How a program ended. `reason` is empty if all went well; `tests` has a note each, empty for one that passed."""

    reason: str
    output: str = ""
    tests: tuple[str, ...] = ()
    layers: Mapping[str, Any] = field(default_factory=dict)


def run_program(
    source: str,
    tests: Sequence[str] = (),
    stdin: str = "",
    limits: Limits | None = None,
    unsafe: bool = False,
) -> Outcome:
    """Run Python text and then each test among its names, in a process that is gone afterwards with all it started."""
    if sys.platform != "linux":
        raise SandboxRefused(f"programs are run on Linux only, not on {sys.platform}; leave the reward `code` out")
    limits = limits or Limits()
    with tempfile.TemporaryDirectory(prefix="coterie-") as folder, tempfile.TemporaryFile() as request:
        nonce = secrets.token_hex(16)
        asked = {"source": source, "tests": list(tests), "stdin": stdin, "folder": folder, "unsafe": unsafe}
        asked |= {"nonce": nonce, "parent": os.getpid(), "seconds": limits.seconds, "memory_mb": limits.memory_mb}
        request.write(json.dumps({**asked, "folder_mb": limits.folder_mb}).encode())
        request.seek(0)
        ours, theirs = os.pipe()
        with os.fdopen(ours, "rb", buffering=0) as told:
            try:
                process = _start(request, theirs, folder)
            finally:
                os.close(theirs)
            with process:
                try:
                    watched = _Watched(process, told, nonce, limits)
                    watched.follow()
                finally:
                    _kill(process)
    return watched.outcome(len(tests))


def _start(request: IO[bytes], theirs: int, folder: str) -> subprocess.Popen[bytes]:
    # Of our environment nothing: it is where people keep their keys.
    environment = {"HOME": folder, "TMPDIR": folder, "LANG": "C.UTF-8", "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.Popen(
        [sys.executable, "-I", "-B", "-X", "utf8", str(JAIL), str(theirs), folder],
        stdin=request,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd="/",
        env=environment,
        pass_fds=(theirs,),
        start_new_session=True,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    """The starter and the program are in one group, which the program cannot leave."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


class _Watched:
    """A running program: what it wrote, what it was told about, and why it had to be stopped."""

    def __init__(self, process: subprocess.Popen[bytes], told: IO[bytes], nonce: str, limits: Limits) -> None:
        self.process, self.nonce, self.limits = process, nonce, limits
        assert process.stdout is not None and process.stderr is not None
        self.pipes = {"output": process.stdout, "errors": process.stderr, "told": told}
        self.written = dict.fromkeys(self.pipes, b"")
        self.stopped = ""
        self.started = False

    def follow(self) -> None:
        """Read until it has ended or must be stopped."""
        deadline = time.monotonic() + START_S
        with selectors.DefaultSelector() as selector:
            for name, pipe in self.pipes.items():
                selector.register(pipe, selectors.EVENT_READ, name)
            while selector.get_map() and not self.stopped:
                left = deadline - time.monotonic()
                if left <= 0:
                    self.stopped = f"it ran longer than {self.limits.seconds:g} s"
                    return
                for key, _ in selector.select(left):
                    chunk = os.read(key.fd, 1 << 16)
                    if not chunk:
                        selector.unregister(key.fileobj)
                    self._take(key.data, chunk)
                if not self.started and b"\n" in self.written["told"]:
                    self.started, deadline = True, time.monotonic() + self.limits.seconds

    def _take(self, name: str, chunk: bytes) -> None:
        self.written[name] += chunk
        if sum(map(len, self.written.values())) > self.limits.output_kb << 10:
            self.stopped = f"it wrote more than {self.limits.output_kb} kB"

    def outcome(self, num_tests: int) -> Outcome:
        """What all this amounts to; SandboxRefused if the program was never run."""
        lines = list(self._lines())
        layers = next((line["layers"] for line in lines if "layers" in line), None)
        if layers is None:
            raise SandboxRefused(f"the sandbox did not start: {self._last_words() or self.stopped}")
        if any(line.get("refused") for line in lines):
            raise SandboxRefused(
                "this system offers too little to run programs safely (it takes Landlock and seccomp; here: "
                f"{_say(layers)}); set unsafe = true to run them all the same, or leave the reward `code` out"
            )
        notes = {line["test"]: str(line["note"]) for line in lines if "test" in line}
        tests = tuple(notes.get(place, "it was not reached") for place in range(num_tests))
        return Outcome(self._reason(lines), self.written["output"].decode(errors="replace"), tests, layers)

    def _reason(self, lines: Sequence[Mapping[str, Any]]) -> str:
        raised = next((str(line["raised"]) for line in lines if "raised" in line), "")
        if raised.startswith("MemoryError"):
            return f"it asked for more memory than {self.limits.memory_mb} MB"
        if self.stopped or raised:
            return self.stopped or raised
        code = self.process.returncode
        if code != 0:
            # The starter adds 128 to a signal's number, as a shell does.
            return f"it was ended by {signal.Signals(code - 128).name}" if code > 128 else f"it ended with {code}"
        return "" if any("done" in line for line in lines) else "it ended before it was done"

    def _lines(self) -> list[dict[str, Any]]:
        """What the jail said; whatever else came down its pipe is the program's."""
        found = []
        for line in self.written["told"].split(b"\n"):
            try:
                said = json.loads(line)
            except ValueError:
                continue
            if isinstance(said, dict) and said.get("nonce") == self.nonce:
                found.append(said)
        return found

    def _last_words(self) -> str:
        words = self.written["errors"].decode(errors="replace").strip().splitlines()
        return words[-1][:200] if words else ""


def _say(layers: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {str(value).lower()}" for name, value in layers.items())


@cache
def probe() -> Mapping[str, Any]:
    """Which of its layers the sandbox has here; SandboxRefused if they are too few."""
    return run_program("").layers
