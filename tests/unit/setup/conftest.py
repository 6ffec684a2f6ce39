"""A machine in a folder: a PATH with nothing on it but what a test puts there, and a copy of what set-up reads."""

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]

TOOLS = """
awk bash cat chmod cut date df dirname du env find flock grep head ls make mkdir mktemp mv rm sed sh sha256sum sleep
sort tail timeout tr uname
"""

# What the real distributions leave behind, as far as set-up looks at it.
FAKE_UV = r"""
echo "$*" >>"$HOME/uv-calls"
case "$1 $2" in
  "--version "*) echo "uv $(cat "$HOME/uv-version")"; exit ;;
  "python find") cat "$HOME/uv-python" 2>/dev/null; exit ;;
esac
next=$(head -n 1 "$HOME/uv-outcomes" 2>/dev/null); sed -i 1d "$HOME/uv-outcomes" 2>/dev/null
case "$next" in
  network) echo "error: Failed to fetch: torch"; echo "  cause: error sending request"; exit 2 ;;
  conflict) echo "error: No solution found when resolving dependencies"; echo "  cause: Because a==1 is gone"; exit 1 ;;
  disk) echo "error: Failed to extract archive"; echo "  cause: No space left on device (os error 28)"; exit 2 ;;
  killed) kill -9 $PPID; exit 137 ;;
  interrupted) kill -INT $PPID; exit 130 ;;
esac
venv=$(dirname "$(dirname "$4")")
site=$venv/lib/python3.12/site-packages
if [ "$5" = --no-deps ]; then
  for file in "$@"; do :; done
  mkdir -p "$site/megatron/core"
  echo >"$site/megatron/core/__init__.py"
  rm -rf "$site"/megatron_*.dist-info
  for name in $(sed -n 's/^megatron-\(.*\)==\(.*\)/megatron_\1-\2/p' "$file"); do mkdir "$site/$name.dist-info"; done
  exit
fi
for name in torch transformers tensordict ray transfer_queue peft hydra verl vllm; do
  mkdir -p "$site/$name"
  echo >"$site/$name/__init__.py"
done
mkdir -p "$site/vllm/platforms"
echo 'class CpuPlatform: import_kernels = staticmethod(lambda: None)' >"$site/vllm/platforms/cpu.py"
echo 'class ops:
    class _C: silu_and_mul = None' >"$site/torch/__init__.py"
[ "$next" != broken ] || echo 'raise OSError("no libc10.so")' >"$site/torch/__init__.py"
echo "$PWD" >"$site/nereus.pth"
for name in nereus pytest; do
  printf '#!/bin/sh\nfor argument in "$@"; do printf "%%s\\n" "$argument"; done\n' >"$venv/bin/$name"
  chmod +x "$venv/bin/$name"
done
"""


@dataclass
class Machine:
    home: Path
    repo: Path
    bin: Path
    real_python: str = sys._base_executable
    version: str = "{}.{}.{}".format(*sys.version_info)

    def script(self, path: Path | str, body: str) -> Path:
        """An executable shell script; a bare name goes on the PATH."""
        path = self.bin / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"#!{shutil.which('sh')}\n{body}\n")
        path.chmod(0o755)
        return path

    def python(self, path: Path | str, pretend: str = "") -> Path:
        """A Python 3.12 at this place; `pretend` is run inside it before what it is asked to run with -c."""
        if not pretend:
            return self.script(path, f'exec "{self.real_python}" "$@"')
        code = f"import sys; code = sys.argv.pop(1); {pretend}; exec(code)"
        return self.script(path, f'shift 2; exec "{self.real_python}" -I -c \'{code}\' "$@"')

    def uv(self, *outcomes: str, version: str = "0.13.9") -> None:
        """A uv on the PATH whose installations end like this, one after the other; then they succeed."""
        self.script("uv", FAKE_UV)
        (self.home / "uv-version").write_text(version)
        (self.home / "uv-outcomes").write_text("".join(f"{outcome}\n" for outcome in outcomes))

    def installs(self) -> list[str]:
        calls = self.home / "uv-calls"
        return [line for line in calls.read_text().splitlines() if line.startswith("pip ")] if calls.exists() else []

    def run(self, *command: str, **environment: str) -> subprocess.CompletedProcess[str]:
        environment = {"HOME": str(self.home), "PATH": str(self.bin), "TMPDIR": str(self.home), **environment}
        return subprocess.run(command, cwd=self.repo, env=environment, capture_output=True, text=True, timeout=120)

    def setup(self, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
        return self.run("bash", "scripts/setup.sh", *arguments, **environment)


@pytest.fixture(scope="session")
def make_machine():
    if sys.version_info[:2] != (3, 12):
        pytest.skip("the tests of set-up lend their own Python 3.12 to the machine in a folder")

    def make(folder: Path) -> Machine:
        made = Machine(home=folder / "home", repo=folder / "the repo", bin=folder / "bin")
        for path in (made.home, made.bin, made.repo / "scripts", made.repo / "verl_ext"):
            path.mkdir(parents=True)
        for name in TOOLS.split():
            if found := shutil.which(name):  # flock and timeout are not everywhere, and set-up does without
                (made.bin / name).symlink_to(found)
        made.script("cc", "exit 0")
        for file in (
            "scripts/setup.sh",
            "scripts/check_imports.py",
            "pyproject.toml",
            "Makefile",
            "verl_ext/__init__.py",
        ):
            shutil.copy(ROOT / file, made.repo / file)
        shutil.copytree(ROOT / "constraints", made.repo / "constraints")
        return made

    return make


@pytest.fixture
def machine(make_machine, tmp_path: Path) -> Machine:
    return make_machine(tmp_path)
