"""Runs a program where it can do no harm; a script of its own, started by `sandbox.py`, that imports none of ours.

The starter enters fresh namespaces where the kernel lets it and forks; the child gives up what is left to it
(capabilities, files by Landlock, calls by seccomp) and only then runs the program, in the same interpreter, so that
not even exec is needed. Without Landlock or seccomp nothing is run, unless the request says unsafe.
"""

from __future__ import annotations

import builtins
import ctypes
import json
import os
import platform
import resource
import signal
import struct
import sys
import sysconfig
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

LIBC = ctypes.CDLL(None, use_errno=True)
NAMESPACES = 0x10000000 | 0x20000000 | 0x40000000 | 0x00020000 | 0x08000000 | 0x04000000  # user pid net mount ipc uts
INSIDE_ID = 1000
AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
NEWEST_KNOWN = 449  # what came later is not judged here, so it is not there
# name:x86_64:aarch64, as in the kernel's unistd.h. Landlock does not cover modes, owners, times and attributes.
DENIED = """
socket:41:198 connect:42:203 bind:49:200 fork:57:- vfork:58:- execve:59:221 execveat:322:281 setsid:112:157
setpgid:109:154 unshare:272:97 setns:308:268 ptrace:101:117 process_vm_readv:310:270 process_vm_writev:311:271
kcmp:312:272 kill:62:129 tkill:200:130 rt_sigqueueinfo:129:138 rt_tgsigqueueinfo:297:240 pidfd_send_signal:424:424
pidfd_open:434:434 pidfd_getfd:438:438 setpriority:141:140 sched_setaffinity:203:122 sched_setscheduler:144:119
sched_setparam:142:118 sched_setattr:314:274 ioprio_set:251:30 migrate_pages:256:238 move_pages:279:239
process_madvise:440:440 process_mrelease:448:448 mount:165:40 umount2:166:39 pivot_root:155:41 chroot:161:51
open_tree:428:428 move_mount:429:429 fsopen:430:430 fsconfig:431:431 fsmount:432:432 fspick:433:433
mount_setattr:442:442 chmod:90:- fchmod:91:52 fchmodat:268:53 chown:92:- fchown:93:55 lchown:94:- fchownat:260:54
utime:132:- utimes:235:- futimesat:261:- utimensat:280:88 truncate:76:45 mknod:133:- mknodat:259:33 setxattr:188:5
lsetxattr:189:6 fsetxattr:190:7 removexattr:197:14 lremovexattr:198:15 fremovexattr:199:16 shmget:29:194
shmat:30:196 msgget:68:186 semget:64:190 mq_open:240:180 memfd_create:319:279 memfd_secret:447:447
io_uring_setup:425:425 userfaultfd:323:282 perf_event_open:298:241 bpf:321:280 keyctl:250:219 add_key:248:217
request_key:249:218 fanotify_init:300:262 open_by_handle_at:304:265 name_to_handle_at:303:264 personality:135:92
kexec_load:246:104 kexec_file_load:320:294 init_module:175:105 finit_module:313:273 delete_module:176:106
reboot:169:142 swapon:167:224 swapoff:168:225 syslog:103:116 acct:163:89 quotactl:179:60 vhangup:153:58 iopl:172:-
ioperm:173:- settimeofday:164:170 clock_settime:227:112 adjtimex:159:171 clock_adjtime:305:266 sethostname:170:161
setdomainname:171:162
"""
BY_ARGUMENT = """
clone:56:220 clone3:435:435 tgkill:234:131 prlimit64:302:261 fcntl:72:25 ioctl:16:29 prctl:157:167
socketpair:53:199
"""
EPERM, ENOSYS = 1, 38
ALLOW, REFUSE, KILL = 0x7FFF0000, 0x00050000, 0x80000000
LOAD, EQUAL, GREATER, ANY_BIT, AND, RETURN = 0x20, 0x15, 0x25, 0x45, 0x54, 0x06
NUMBER, ARCH = 0, 4

READ_FILE, READ_DIR = 1 << 2, 1 << 3
WRITE_FILE, TRUNCATE = 1 << 1, 1 << 14
FILE_RIGHTS = 1 | WRITE_FILE | READ_FILE | TRUNCATE | 1 << 15
DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
LIBRARIES = ("/lib", "/lib64", "/usr/lib", "/usr/lib64", "/usr/local/lib", "/usr/share/zoneinfo", "/etc/ld.so.cache")


def call(number: int, *arguments: Any) -> int:
    """A system call; OSError if it fails."""
    result = LIBC.syscall(ctypes.c_long(number), *arguments)
    if result < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return int(result)


def enter_namespaces(folder: str, folder_mb: int) -> dict[str, bool]:
    """Whether processes and network are fresh ones, and whether all but an empty folder in memory is read-only."""
    outer, group = os.geteuid(), os.getegid()
    if LIBC.unshare(NAMESPACES) != 0:
        return {"namespaces": False, "read_only": False}
    try:
        for name, text in (
            ("setgroups", "deny"),
            ("uid_map", f"{INSIDE_ID} {outer} 1"),
            ("gid_map", f"{INSIDE_ID} {group} 1"),
        ):
            with open(f"/proc/self/{name}", "w") as file:
                file.write(text)
        _mount(b"none", b"/", None, 0x4000 | 0x40000, None)  # private, recursively
        read_only = struct.pack("QQQQ", 1 | 2, 0, 0, 0)  # and no setuid
        call(442, -100, ctypes.c_char_p(b"/"), 0x8000, read_only, ctypes.c_size_t(len(read_only)))
        _mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 2 | 4, b"size=%dm,nr_inodes=4k,mode=700" % folder_mb)
    except OSError:  # some distributions grant namespaces without the rights that go with them
        return {"namespaces": True, "read_only": False}
    return {"namespaces": True, "read_only": True}


def _mount(source: bytes, target: bytes, kind: bytes | None, flags: int, options: bytes | None) -> None:
    if LIBC.mount(source, target, kind, ctypes.c_ulong(flags), options) != 0:
        raise OSError(ctypes.get_errno(), "mount")


def drop_capabilities() -> None:
    """What root could do beyond its own files."""
    header, nothing = struct.pack("Ii", 0x20080522, 0), bytes(24)
    LIBC.capset(header, nothing)
    if LIBC.prctl(38, 1, 0, 0, 0) != 0:  # PR_SET_NO_NEW_PRIVS: Landlock and seccomp ask for it
        raise OSError(ctypes.get_errno(), "no_new_privs")


def close_files(folder: str, writable: bool) -> int:
    """Landlock: the interpreter may be read, the folder used, and nothing else opened. Gives the kernel's version."""
    try:
        version = call(444, None, ctypes.c_size_t(0), 1)
    except OSError:
        return 0
    handled = (1 << {1: 13, 2: 14, 3: 15, 4: 15}.get(version, 16)) - 1
    size = 8 if version < 4 else 16 if version < 6 else 24
    # Beside files: TCP, and (scoped) abstract sockets and signals to others.
    rules = call(444, struct.pack("QQQ", handled, 3, 3)[:size], ctypes.c_size_t(size), 0)
    reading = READ_FILE | READ_DIR
    granted = dict.fromkeys((*LIBRARIES, *interpreter_paths(), *DEVICES), reading)
    granted["/dev/null"] |= WRITE_FILE
    granted[folder] = handled & ~1 if writable else reading
    for path, rights in granted.items():
        try:
            place = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError:
            continue  # not every system has all of them
        rights &= handled if os.path.isdir(path) else handled & FILE_RIGHTS
        call(445, rules, 1, struct.pack("=Qi", rights, place), 0)
        os.close(place)
    call(446, rules, 0)
    os.close(rules)
    return version


def interpreter_paths() -> Iterator[str]:
    """Where this Python's modules lie; not its prefix, which may be a home."""
    for prefix in dict.fromkeys((sys.prefix, sys.base_prefix, sys.exec_prefix, sys.base_exec_prefix)):
        yield from (os.path.join(prefix, name) for name in ("lib", "lib64", "pyvenv.cfg"))
    yield from (sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def close_calls() -> bool:
    """seccomp: no sockets, no processes, no signals to others; False where the kernel or the machine has no filters."""
    machine = platform.machine()
    if machine not in AUDIT_ARCH:
        return False
    program = b"".join(struct.pack("HBBI", *line) for line in call_filter(machine, os.getpid()))
    lines = ctypes.create_string_buffer(program, len(program))
    header = struct.pack("H6xQ", len(program) // 8, ctypes.addressof(lines))
    return int(LIBC.prctl(22, 2, header, 0, 0)) == 0


def call_filter(machine: str, own_pid: int) -> list[tuple[int, int, int, int]]:
    """The filter as BPF: (code, steps if true, steps if false, constant)."""
    denied, special = numbers(DENIED, machine), numbers(BY_ARGUMENT, machine)
    lines = [(LOAD, 0, 0, ARCH), (EQUAL, 1, 0, AUDIT_ARCH[machine]), (RETURN, 0, 0, KILL), (LOAD, 0, 0, NUMBER)]
    lines += [(GREATER, 0, 1, NEWEST_KNOWN), (RETURN, 0, 0, REFUSE | ENOSYS)]
    for number in denied.values():
        lines += [(EQUAL, 0, 1, number), (RETURN, 0, 0, REFUSE | EPERM)]
    yes, no = (RETURN, 0, 0, ALLOW), (RETURN, 0, 0, REFUSE | EPERM)
    checks: dict[str, list[tuple[int, int, int, int]]] = {
        "clone": [argument(0), (ANY_BIT, 0, 1, 0x10000), yes, no],  # threads, not processes
        "clone3": [(RETURN, 0, 0, REFUSE | ENOSYS)],  # its flags lie in memory; the C library falls back to clone
        "tgkill": [argument(0), (EQUAL, 0, 1, own_pid), yes, no],
        "prlimit64": [argument(0), (EQUAL, 0, 1, 0), yes, no],
        # Who gets a file's signals could be anyone.
        "fcntl": [argument(1), (EQUAL, 3, 0, 8), (EQUAL, 2, 0, 10), (EQUAL, 1, 0, 15), yes, no],
        "ioctl": [argument(1), (EQUAL, 2, 0, 0x8901), (EQUAL, 1, 0, 0x8902), yes, no],  # the same, of a socket
        "prctl": [argument(0), (EQUAL, 1, 0, 1), yes, no],  # to die with the parent is not to be undone
        "socketpair": [argument(1), (AND, 0, 0, 0xF), (EQUAL, 0, 1, 1), yes, no],  # asyncio needs one, of streams
    }
    for name, block in checks.items():
        lines += [(EQUAL, 0, len(block), special[name]), *block]
    return [*lines, yes]


def numbers(table: str, machine: str) -> dict[str, int]:
    column = list(AUDIT_ARCH).index(machine) + 1
    rows = (row.split(":") for row in table.split())
    return {row[0]: int(row[column]) for row in rows if row[column] != "-"}


def argument(place: int) -> tuple[int, int, int, int]:
    """Loads the low half of a call's argument."""
    return (LOAD, 0, 0, 16 + 8 * place)


def set_limits(request: Mapping[str, Any], namespaces: bool) -> None:
    megabyte = 1 << 20
    limits = {
        resource.RLIMIT_AS: request["memory_mb"] * megabyte,
        resource.RLIMIT_CPU: int(request["seconds"]) + 2,
        resource.RLIMIT_FSIZE: request["folder_mb"] * megabyte,
        resource.RLIMIT_NOFILE: 64,
        resource.RLIMIT_CORE: 0,
    }
    if namespaces:  # elsewhere the user's other processes would count
        limits[resource.RLIMIT_NPROC] = 32
    for what, limit in limits.items():
        hard = resource.getrlimit(what)[1]
        limit = limit if hard == resource.RLIM_INFINITY else min(limit, hard)
        resource.setrlimit(what, (limit, limit))


def confine(request: Mapping[str, Any], layers: dict[str, Any]) -> None:
    """Give up everything that the program does not need; what could be given up is noted in `layers`."""
    os.chdir(request["folder"])
    stdin = os.memfd_create("stdin")
    os.write(stdin, request["stdin"].encode(errors="replace"))
    os.lseek(stdin, 0, os.SEEK_SET)
    os.dup2(stdin, 0)
    os.close(stdin)
    set_limits(request, layers["namespaces"])
    drop_capabilities()
    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)
    layers["landlock"] = close_files(request["folder"], layers["read_only"])
    layers["seccomp"] = close_calls()


def is_enough(layers: Mapping[str, Any]) -> bool:
    """Before Landlock's third version a file could be cut short that may only be read."""
    return bool(layers["seccomp"] and layers["landlock"] >= (1 if layers["read_only"] else 3))


def run_program(source: str, tests: Sequence[str], tell: Callable[..., None]) -> None:
    """The program, then each test among its names; what happened is told as it happens."""
    # With tests it is a module like any other; a main block is for programs that read and print.
    names = {"__name__": "answer" if tests else "__main__", "__builtins__": builtins}
    try:
        exec(compile(source, "answer.py", "exec"), names)
    except SystemExit as end:
        if end.code not in (None, 0) or tests:
            tell(raised="it ended before its tests" if tests else f"it ended with {end.code}"[:200])
            return
    except BaseException as error:
        tell(raised=describe(error))
        return
    for place, test in enumerate(tests):
        note = ""
        try:
            exec(compile(test, "test.py", "exec"), names)
        except BaseException as error:
            note = describe(error) or "it failed"
        tell(test=place, note=note)
    tell(done=True)


def describe(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:200].rstrip(": ")
    except Exception:  # its __str__ is the program's own
        return "an error without words"


def main() -> None:
    with os.fdopen(0, "rb", closefd=False) as file:
        request = json.load(file)
    pipe, nonce = int(sys.argv[1]), request.pop("nonce")

    def tell(**what: Any) -> None:
        os.write(pipe, json.dumps({"nonce": nonce, **what}).encode() + b"\n")

    LIBC.prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG: never outlive who asked
    signal.alarm(int(request["seconds"]) + 60)
    if os.getppid() != request["parent"]:
        return
    layers: dict[str, Any] = dict(enter_namespaces(request["folder"], request["folder_mb"]))
    if child := os.fork():
        os.close(pipe)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        os._exit(code if code >= 0 else 128 - code)
    try:
        confine(request, layers)
    except OSError as error:
        layers |= {"landlock": 0, "seccomp": False, "trouble": str(error)}
    fine = is_enough(layers) or request["unsafe"]
    tell(layers=layers, refused=not fine)
    if fine:
        run_program(request["source"], request["tests"], tell)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    finally:
        os._exit(0)


if __name__ == "__main__":
    main()
