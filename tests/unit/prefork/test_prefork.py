"""A process started through the prefork server behaves like one started with python."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from verl_ext.launch.prefork.start import Prefork


@pytest.fixture(scope="module")
def prefork(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prefork]:
    with Prefork(tmp_path_factory.mktemp("prefork") / "log", modules=("json", "numpy")) as server:
        yield server


def run(prefork: Prefork, *arguments: str, **kwargs) -> subprocess.CompletedProcess[str]:
    return subprocess.run([prefork.python, *arguments], capture_output=True, text=True, timeout=30, **kwargs)


def test_it_runs_code_with_its_arguments_and_returns_its_status(prefork):
    done = run(prefork, "-c", "import sys; print(sys.argv); sys.exit(7)", "a", "b c")
    assert (done.returncode, done.stdout) == (7, "['-c', 'a', 'b c']\n")


def test_it_really_is_a_fork_with_the_modules_loaded(prefork):
    done = run(prefork, "-c", "import sys, os; print('numpy' in sys.modules, os.getppid())")
    assert done.stdout.split() == ["True", str(prefork.pid)]


def test_a_script_is_main_and_finds_its_neighbours(prefork, tmp_path: Path):
    (tmp_path / "neighbour.py").write_text("value = 5\n")
    script = tmp_path / "script.py"
    script.write_text(
        "import neighbour, sys\nprint(__name__, __file__ == sys.argv[0], neighbour.value, sys.argv[1:])\n"
    )
    done = run(prefork, str(script), "x")
    assert done.stdout == "__main__ True 5 ['x']\n"


def test_a_module_runs_as_python_m_does(prefork):
    done = run(prefork, "-m", "json.tool", input='{"a":1}')
    assert done.stdout == '{\n    "a": 1\n}\n'


def test_the_command_line_is_recorded_as_the_interpreter_would(prefork):
    done = run(prefork, "-c", "import sys; print(sys.orig_argv)", "z")
    assert done.stdout.strip() == str([sys.executable, "-c", "import sys; print(sys.orig_argv)", "z"])


def test_environment_folder_and_umask_are_the_callers(prefork, tmp_path: Path):
    code = "import os; print(sorted(os.environ)); print(os.getcwd()); m=os.umask(0); print(m)"
    previous = os.umask(0o027)
    try:
        done = run(prefork, "-c", code, cwd=tmp_path, env={"PATH": os.environ["PATH"], "ONLY": "this"})
    finally:
        os.umask(previous)
    variables, folder, mask = done.stdout.splitlines()
    assert "ONLY" in variables
    assert "HOME" not in variables
    assert folder == str(tmp_path)
    assert int(mask) == 0o027


def test_an_uncaught_exception_is_a_traceback_and_status_one(prefork):
    done = run(prefork, "-c", "raise ValueError('boom')")
    assert done.returncode == 1
    assert done.stderr.rstrip().endswith("ValueError: boom")


def test_death_by_signal_is_seen_as_death_by_that_signal(prefork):
    assert run(prefork, "-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)").returncode == -signal.SIGKILL


def test_a_signal_to_the_stand_in_reaches_the_fork(prefork):
    code = (
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\n"
        "print('up', flush=True)\n"
        "time.sleep(30)"
    )
    process = subprocess.Popen([prefork.python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=10) == 9


def test_killing_the_stand_in_kills_the_fork(prefork):
    code = "import os, time; print(os.getpid(), flush=True); time.sleep(60)"
    process = subprocess.Popen([prefork.python, "-c", code], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    fork = int(process.stdout.readline())
    process.kill()
    process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline and Path(f"/proc/{fork}").exists():
        time.sleep(0.05)
    assert not Path(f"/proc/{fork}").exists()


def test_passed_descriptors_keep_their_numbers_and_no_others_leak(prefork):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        code = (
            "import os, socket, sys\n"
            f"socket.socket(fileno={theirs.fileno()}).send(b'hello')\n"
            "print(sorted(int(n) for n in os.listdir('/proc/self/fd'))[:8])"
        )
        process = subprocess.Popen(
            [prefork.python, "-c", code], stdout=subprocess.PIPE, text=True, pass_fds=[theirs.fileno()]
        )
        assert process.stdout is not None
        open_fds = process.stdout.read()
        assert process.wait(timeout=10) == 0
        assert ours.recv(5) == b"hello"
    assert len(open_fds.split(",")) <= 5  # 0, 1, 2, the socket (closed by then or not), the listing


def test_two_forks_do_not_share_random_numbers(prefork):
    code = "import random, numpy; print(random.random(), numpy.random.rand())"
    first, second = run(prefork, "-c", code).stdout.split(), run(prefork, "-c", code).stdout.split()
    assert first[0] != second[0]
    assert first[1] != second[1]


def test_other_interpreter_switches_get_a_real_interpreter(prefork):
    done = run(prefork, "-X", "importtime", "-c", "import sys; print('numpy' in sys.modules)")
    assert done.stdout == "False\n"
    assert "import time:" in done.stderr


def test_a_process_for_another_ray_job_gets_a_real_interpreter(prefork):
    code = "import sys; print('numpy' in sys.modules)"
    for job, forked in (("01000000", "True\n"), ("02000000", "False\n")):
        assert run(prefork, "-c", code, env={**os.environ, "RAY_JOB_ID": job}).stdout == forked


def test_multiprocessing_spawn_works_through_it(prefork, tmp_path: Path):
    script = tmp_path / "spawn.py"
    script.write_text(
        "import multiprocessing, os, sys\n"
        "def work(queue):\n"
        "    queue.put((os.getppid(), 'numpy' in sys.modules))\n"
        "if __name__ == '__main__':\n"
        f"    multiprocessing.set_executable({str(prefork.python)!r})\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    process = context.Process(target=work, args=(queue,))\n"
        "    process.start()\n"
        "    print(*queue.get(timeout=20))\n"
        "    process.join()\n"
        "    sys.exit(process.exitcode)\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(prefork.pid), "True"]


def test_without_a_server_python_starts_all_the_same_and_says_so(tmp_path: Path):
    with Prefork(tmp_path / "log", modules=("json",)) as server:
        wrapper = server.python.read_text()
    orphan = tmp_path / "python"
    orphan.write_text(wrapper)
    orphan.chmod(0o700)
    done = subprocess.run([orphan, "-c", "print('works')"], capture_output=True, text=True, timeout=30)
    assert done.stdout == "works\n"
    assert "no server" in done.stderr


def test_leaving_ends_the_server_and_its_forks(tmp_path: Path):
    with Prefork(tmp_path / "log", modules=("json",)) as server:
        sleeper = subprocess.Popen(
            [server.python, "-c", "import time; print('up', flush=True); time.sleep(60)"], stdout=subprocess.PIPE
        )
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == b"up\n"
    assert not psutil.pid_exists(server.pid)
    assert sleeper.wait(timeout=10) != 0


def test_nothing_of_the_server_closes_a_descriptor_of_the_fork(prefork):
    # A socket object inherited from the server, collected late, would close a number that the program has reused.
    code = "import gc, os\nmine = [os.open('/dev/null', os.O_RDONLY) for _ in range(40)]\ngc.unfreeze(); gc.collect()\n"
    code += "import atexit\natexit.register(lambda: [os.fstat(fd) for fd in mine] and print('all open', flush=True))"
    done = run(prefork, "-c", code)
    assert (done.returncode, done.stdout) == (0, "all open\n")


def test_killing_a_forks_process_group_leaves_the_server_alone(prefork):
    done = run(prefork, "-c", "import os, signal; os.killpg(os.getpgrp(), signal.SIGKILL)")
    assert done.returncode == -signal.SIGKILL
    assert run(prefork, "-c", "print(1)").stdout == "1\n"
