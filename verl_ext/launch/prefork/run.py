"""What a fork does: become the process that was asked for, then run its command line as `python` would."""

from __future__ import annotations

import fcntl
import importlib
import importlib.util
import io
import os
import random
import runpy
import signal
import sys
import tempfile
import types
from dataclasses import dataclass

# Interpreter switches that change nothing for code that is already loaded. With any other one the fork becomes a real
# interpreter by exec, which is slower and always right.
_HARMLESS = {"-u", "-B", "-s"}

RAY_JOB = "RAY_JOB_ID"


@dataclass(frozen=True)
class Job:
    """One process to become.

    Attributes:
        argv: the command line after `python`.
        env: the whole environment.
        cwd, umask: as in the client.
        fds: descriptor numbers in the client, in the order of `received_fds`.
        received_fds: the same open files under the numbers they got here.
    """

    argv: list[str]
    env: dict[str, str]
    cwd: str
    umask: int
    fds: list[int]
    received_fds: tuple[int, ...]

    def run(self) -> None:
        """Install descriptors, environment and signals, then execute. Returns or raises as the program does."""
        loaded_for = os.environ.get(RAY_JOB)
        install_descriptors(self.fds, list(self.received_fds))
        # Ray ends a worker by killing its process group, which would be the server's.
        os.setpgid(0, 0)
        os.environ.clear()
        os.environ.update(self.env)
        os.umask(self.umask)
        os.chdir(self.cwd)
        for signum in (signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD):
            signal.signal(signum, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        if self.env.get(RAY_JOB, loaded_for) != loaded_for:
            os.execv(sys.executable, [sys.executable, *self.argv])
        refresh_process_state()
        execute(list(self.argv))


def install_descriptors(wanted: list[int], received: list[int]) -> None:
    """Give each received open file the number it had in the client and close everything else."""
    floor = max([*wanted, *received, 2]) + 1
    parked = [fcntl.fcntl(fd, fcntl.F_DUPFD, floor) for fd in received]
    for fd, number in zip(parked, wanted, strict=True):
        os.dup2(fd, number, inheritable=True)
    keep = set(wanted)
    for name in os.listdir("/proc/self/fd"):
        fd = int(name)
        if fd not in keep:
            try:
                os.close(fd)
            except OSError:  # the listing's own descriptor is closed already
                continue


def refresh_process_state() -> None:
    """Undo what a fork shares with its siblings and a fresh interpreter would not."""
    random.seed()
    tempfile.tempdir = None  # chosen at first use, perhaps before the fork and by another TMPDIR
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed()
    torch = sys.modules.get("torch")
    threads = os.environ.get("OMP_NUM_THREADS", "")
    if torch is not None and threads.isdigit() and torch.get_num_threads() != int(threads):
        torch.set_num_threads(int(threads))
    raylet = sys.modules.get("ray._raylet")
    if raylet is not None:
        # Ray reads its RAY_* variables (token authentication among them) once, when it is loaded.
        raylet.Config.initialize("")
    unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, write_through=unbuffered)
    for entry in reversed(os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        if entry and entry not in sys.path:
            sys.path.insert(0, entry)


def load_plugin() -> None:
    """Import verl's plugin again, as `import verl` would with this command line and environment."""
    if "verl" in sys.modules and sys.modules.pop("verl_ext.plugin", None) is not None:
        importlib.import_module("verl_ext.plugin")


def execute(argv: list[str]) -> None:
    """Run `python argv...` in this process, with a new `__main__`."""
    original = list(argv)
    sys.orig_argv = [sys.executable, *argv]
    while argv and argv[0] in _HARMLESS:
        argv.pop(0)
    if not argv or (argv[0].startswith("-") and argv[0] not in ("-m", "-c")):
        os.execv(sys.executable, [sys.executable, *original])
    if argv[0] == "-m":
        sys.argv = ["-m", *argv[2:]]
        load_plugin()
        if sys.path[0] != os.getcwd():
            sys.path.insert(0, os.getcwd())
        spec = importlib.util.find_spec(argv[1])
        if spec is not None and spec.origin:
            # `_run_module_as_main` warns when the module is loaded already, as a preloaded one is.
            sys.modules.pop(argv[1], None)
        runpy._run_module_as_main(argv[1], alter_argv=True)  # type: ignore[attr-defined]
        return
    main = types.ModuleType("__main__")
    main.__builtins__ = __builtins__  # type: ignore[attr-defined]
    sys.modules["__main__"] = main
    if argv[0] == "-c":
        # multiprocessing's children: not programs of verl, and vLLM's own plugin hook is what has to reach them.
        sys.argv = ["-c", *argv[2:]]
        sys.path.insert(0, "")
        exec(compile(argv[1], "<string>", "exec"), main.__dict__)
        return
    script = argv[0]
    sys.argv = list(argv)
    load_plugin()
    sys.path.insert(0, os.path.dirname(os.path.abspath(script)))
    main.__file__ = script
    with open(script, "rb") as source:
        code = compile(source.read(), script, "exec")
    exec(code, main.__dict__)
