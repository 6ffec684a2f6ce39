"""Fresh processes, as a user's command line or a Ray worker starts them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

# What a developer may have set, and what would make these tests be about something else.
UNSET = ("VERL_USE_EXTERNAL_PLUGINS", "VERL_USE_EXTERNAL_MODULES", "VLLM_PLUGINS", "NEREUS_ACTIVATION", "PYTHONPATH")


@dataclass(frozen=True)
class Ended:
    """A process that has ended."""

    exit_code: int
    stdout: str
    stderr: str


Fresh = Callable[..., Ended]


@pytest.fixture(scope="session")
def zygote() -> Iterator[subprocess.Popen[str]]:
    environment = {name: value for name, value in os.environ.items() if name not in UNSET}
    # A thread does not survive a fork.
    environment |= {"JE_ARROW_MALLOC_CONF": "background_thread:false", "OPENBLAS_NUM_THREADS": "1"}
    process = subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("zygote.py"))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    )
    with process:
        assert process.stdout is not None and process.stdin is not None
        while (line := process.stdout.readline()) != "ready\n":
            assert line, "the zygote ended while it imported"
        yield process
        process.kill()


@pytest.fixture(scope="session")
def fresh(zygote: subprocess.Popen[str], tmp_path_factory: pytest.TempPathFactory) -> Fresh:
    """Run `python ARGV...` in a process that has imported neither verl, vLLM nor nereus."""
    folder = tmp_path_factory.mktemp("fresh")

    def run(*argv: str, env: dict[str, str] | None = None, path: list[Path] | None = None) -> Ended:
        stdout, stderr = folder / "stdout", folder / "stderr"
        request = {
            "argv": list(argv),
            "env": env or {},
            "path": [str(entry) for entry in path or []],
            "stdout": str(stdout),
            "stderr": str(stderr),
        }
        assert zygote.stdin is not None and zygote.stdout is not None
        zygote.stdin.write(json.dumps(request) + "\n")
        zygote.stdin.flush()
        answer = json.loads(zygote.stdout.readline())
        return Ended(answer["exit_code"], stdout.read_text(), stderr.read_text())

    return run
