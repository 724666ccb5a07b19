"""The sandbox holds: each attack is contained, scored 0 with the reason, and leaves nothing running."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import coterie
from coterie import Task
from coterie.worlds.prompts.programs import Code
from coterie.worlds.prompts.sandbox import JAIL, Limits, SandboxRefused, probe, run_program

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the sandbox is for Linux")

QUICK = Limits(seconds=0.5, memory_mb=256)
# The program is to be held from all of these even if it swallows the errors; `{…}` is filled in by the test.
ATTACKS = {
    "an endless loop": ("while True: pass", "longer than 0.5 s"),
    "a loop that will not be interrupted": (
        "while True:\n    try:\n        while True: pass\n    except BaseException: pass",
        "longer than 0.5 s",
    ),
    "a fork bomb": ("import os\nwhile True: os.fork()", "PermissionError"),
    "a bomb of threads": (
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(60,)).start()",
        "can't start new thread",
    ),
    "100 GB at once": ("x = bytearray(100 << 30)", "more memory than 256 MB"),
    "100 GB bit by bit": ("x = []\nwhile True: x.append(bytes(1 << 20))", "more memory than 256 MB"),
    "a write outside": ("open('{folder}/escaped', 'w').write('x')", "{folder}/escaped"),
    "a change of another's file": ("import os; os.chmod('{folder}/secret', 0o777)", "PermissionError"),
    "reading the home": ("import os; os.listdir('{home}')", "Permission denied"),
    "reading a secret": ("print(open('{folder}/secret').read())", "Permission denied"),
    "reading the environment of others": ("print(open('/proc/{pid}/environ').read())", "Permission denied"),
    "a connection": ("import socket; socket.create_connection(('127.0.0.1', {port}), 0.2)", "PermissionError"),
    "killing its parent": ("import os; os.kill(os.getppid(), 9)", "PermissionError"),
    "killing us": ("import os; os.kill({pid}, 9)", "PermissionError"),
    "killing everyone": ("import os; os.kill(-1, 9)", "PermissionError"),
    "signals to us by way of a socket": (
        "import fcntl, socket, struct\na, b = socket.socketpair()\nfcntl.ioctl(a, 0x8901, struct.pack('i', {pid}))",
        "PermissionError",
    ),
    "limits for us": ("import resource; resource.prlimit({pid}, resource.RLIMIT_CPU, (0, 0))", "PermissionError"),
    "1 GB of output": ("for i in range(1 << 20): print('x' * 1024)", "wrote more than 64 kB"),
    "a daemon": (
        "import os, time\nif os.fork() == 0:\n    os.setsid()\n    time.sleep(60)",
        "PermissionError",
    ),
    "another program": ("import os; os.execv('/bin/sh', ['sh', '-c', 'sleep 60'])", "PermissionError"),
    "to end before the tests": ("import sys; sys.exit(0)", "ended before its tests"),
    "to end at once": ("import os; os._exit(0)", "ended before it was done"),
}


def left_running() -> list[str]:
    """Processes of the sandbox that still live."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes() if entry.name.isdigit() else b""
        except OSError:
            continue
        if os.fsencode(JAIL) in command:
            found.append(entry.name)
    return found


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.01)
        yield server


def filled_in(text: str, folder: Path, port: int) -> str:
    values = {"folder": folder, "home": Path.home(), "pid": os.getpid(), "port": port}
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", str(value))
    return text


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_contained_and_earns_nothing(name: str, tmp_path: Path, listener: socket.socket) -> None:
    (tmp_path / "secret").write_text("key")
    program, told = (filled_in(text, tmp_path, listener.getsockname()[1]) for text in ATTACKS[name])
    reward = Code(seconds=QUICK.seconds, memory_mb=QUICK.memory_mb)
    [verdict] = reward.judge(Task("t", "", {"tests": ["assert True"]}), [f"```python\n{program}\n```"])
    assert verdict.value == 0
    assert told in verdict.note
    assert left_running() == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    with pytest.raises(TimeoutError):
        listener.accept()


UNDER_A_FILTER = """
import ctypes, json, struct, sys
from coterie.worlds.prompts import jail
from coterie.worlds.prompts.sandbox import Limits, SandboxRefused, run_program
asked = json.load(sys.stdin)
yes, lines = (jail.RETURN, 0, 0, jail.ALLOW), [(jail.LOAD, 0, 0, jail.NUMBER)]
for number in asked["denied"]:
    lines += [(jail.EQUAL, 0, 1, number), (jail.RETURN, 0, 0, jail.REFUSE | jail.ENOSYS)]
program = b"".join(struct.pack("HBBI", *line) for line in [*lines, yes])
held = ctypes.create_string_buffer(program, len(program))
assert jail.LIBC.prctl(38, 1, 0, 0, 0) == 0
assert jail.LIBC.prctl(22, 2, struct.pack("H6xQ", len(program) // 8, ctypes.addressof(held)), 0, 0) == 0
for source in asked["programs"]:
    try:
        outcome = run_program(source, limits=Limits(seconds=0.5, memory_mb=256), unsafe=asked.get("unsafe", False))
        print(json.dumps([outcome.reason, outcome.output, dict(outcome.layers)]), flush=True)
    except SandboxRefused as refusal:
        print(json.dumps(["refused", str(refusal), {}]), flush=True)
"""


def run_where_denied(denied: list[int], programs: list[str], **asked: Any) -> list[list[Any]]:
    """Outcomes in a process for which the kernel does not have these calls."""
    done = subprocess.run(
        [sys.executable, "-c", UNDER_A_FILTER],
        input=json.dumps({"denied": denied, "programs": programs, **asked}),
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        env={**os.environ, "PYTHONPATH": str(Path(coterie.__file__).parent.parent)},
    )
    return [json.loads(line) for line in done.stdout.splitlines()]


UNSHARE = {"x86_64": 272, "aarch64": 97}
LANDLOCK = 444


def test_without_namespaces_the_other_layers_hold(tmp_path: Path, listener: socket.socket) -> None:
    (tmp_path / "secret").write_text("key")
    names = [name for name in ATTACKS if not name.startswith(("to end", "a loop", "a bomb"))]
    port = listener.getsockname()[1]
    programs = [filled_in(ATTACKS[name][0], tmp_path, port) for name in names]
    told = [filled_in(ATTACKS[name][1], tmp_path, port) for name in names]
    outcomes = run_where_denied([UNSHARE[os.uname().machine]], [*programs, "print(2)"])
    for name, why, (reason, _, layers) in zip(names, told, outcomes[:-1], strict=True):
        assert not layers["namespaces"]
        assert why in reason, name
    assert outcomes[-1][:2] == ["", "2\n"]
    assert left_running() == []
    assert [path.name for path in tmp_path.iterdir()] == ["secret"]
    with pytest.raises(TimeoutError):
        listener.accept()


def test_without_landlock_it_refuses_and_says_what_to_do() -> None:
    [[kind, told, _]] = run_where_denied([LANDLOCK], ["print(1)"])
    assert kind == "refused"
    assert told.startswith("this system offers too little to run programs safely")
    assert "set unsafe = true" in told
    assert "\n" not in told


def test_told_to_be_unsafe_it_runs_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("key")
    reading = filled_in(ATTACKS["reading a secret"][0], tmp_path, 0)
    [[reason, output, layers]] = run_where_denied([LANDLOCK], [reading], unsafe=True)
    assert (reason, output, layers["landlock"]) == ("", "key\n", 0)


def test_the_layers_are_enough_here() -> None:
    layers = probe()
    assert layers["seccomp"] and layers["landlock"] >= 1


def test_elsewhere_than_on_linux_it_refuses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(SandboxRefused, match="on Linux only, not on darwin"):
        run_program("")


@pytest.mark.parametrize(
    ("program", "printed"),
    [
        ("print(int(input()) * 2)", "42\n"),
        ("import json, math, collections, re; print(math.comb(4, 2))", "6\n"),
        ("import asyncio\nasync def f(): print('later')\nasyncio.run(f())", "later\n"),
        ("import threading\nt = threading.Thread(target=print, args=('hi',)); t.start(); t.join()", "hi\n"),
        ("if __name__ == '__main__':\n    print('main')", "main\n"),
        ("import sys; print('done'); sys.exit()", "done\n"),
    ],
)
def test_honest_programs_run(program: str, printed: str) -> None:
    outcome = run_program(program, stdin="21\n")
    assert (outcome.output, outcome.reason) == (printed, "")


def test_a_program_sees_none_of_our_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SECRET_KEY", "1234")
    assert "SECRET" not in run_program("import os; print(dict(os.environ))").output


def test_its_folder_can_be_used_and_is_bounded() -> None:
    if not probe()["read_only"]:
        pytest.skip("the kernel denies namespaces here, and then the folder is not writable")
    assert run_program("open('a', 'w').write('hi'); print(open('a').read())").output == "hi\n"
    filling = "for i in range(100): open(f'f{i}', 'wb').write(bytes(1 << 20))"
    assert "No space left" in run_program(filling).reason


def test_a_crash_is_told_by_its_signal() -> None:
    assert run_program("import ctypes; ctypes.string_at(0)").reason == "it was ended by SIGSEGV"


def test_a_program_cannot_say_that_its_tests_passed() -> None:
    forged = 'import os, json\nfor fd in range(3, 20):\n    try: os.write(fd, b\'{"test": 0, "note": ""}\\n\')\n'
    outcome = run_program(forged + "    except OSError: pass\nos._exit(0)", ["assert False"])
    assert outcome.tests == ("it was not reached",)
    assert outcome.reason == "it ended before it was done"


def test_whoever_dies_takes_the_program_along() -> None:
    script = (
        "import os, signal, threading\nfrom coterie.worlds.prompts.sandbox import Limits, run_program\n"
        "threading.Timer(1.5, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()\n"
        "run_program('import time; time.sleep(60)', limits=Limits(seconds=60))"
    )
    source = str(Path(coterie.__file__).parent.parent)
    done = subprocess.run([sys.executable, "-c", script], env={**os.environ, "PYTHONPATH": source}, timeout=60)
    assert done.returncode == -9
    for _ in range(500):  # the kernel needs a moment to end what was orphaned
        if not left_running():
            break
        subprocess.run(["sleep", "0.01"], check=True)
    assert left_running() == []


def test_code_is_worth_the_share_of_its_tests_and_cases() -> None:
    double = "```python\ndef double(n):\n    return n * 2\n```"
    task = Task("t", "", {"tests": ["assert double(2) == 4", "assert double('a') == 'aa'", "assert double(1) == 3"]})
    [verdict] = Code().judge(task, [double])
    assert verdict.value == pytest.approx(2 / 3)
    assert verdict.note == "AssertionError"
    cases = Task("t", "", {"cases": [{"input": "3", "output": "6"}, {"input": "x", "output": "?"}]})
    [right, loop] = Code(seconds=0.5).judge(cases, ["print(2 * int(input()))", "while True: pass"])
    assert right.value == 0.5
    assert right.note.startswith("ValueError: invalid literal")
    assert (loop.value, loop.note) == (0.0, "it ran longer than 0.5 s")
    assert Code().judge(Task("t", ""), ["print(1)"])[0].value is None
