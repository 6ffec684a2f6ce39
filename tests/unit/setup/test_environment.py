"""Set-up from nothing to complete, cut short, moved, out of date and failing, with a uv that only pretends."""

import os
import shutil

import pytest

INSTALL = (
    "pip install --python {venv}/bin/python --override constraints/overrides.txt -c constraints/cpu.txt "
    "--build-constraint constraints/build.txt -e .[cpu,dev]"
)
MEGATRON = (
    "pip install --python {venv}/bin/python --no-deps "
    "--build-constraint constraints/build.txt -r constraints/megatron.txt"
)


def completed(machine):
    machine.python("python3.12")
    machine.uv()
    result = machine.setup()
    assert result.returncode == 0, result.stderr
    return machine


@pytest.fixture
def ready(machine):
    """A machine whose set-up is complete, with one installation, of two steps, behind it."""
    return completed(machine)


@pytest.fixture(scope="module")
def complete_once(make_machine, tmp_path_factory):
    """The same, once for all tests that leave it as it was."""
    return completed(make_machine(tmp_path_factory.mktemp("machine")))


def test_one_installation_with_the_pins_then_none(ready):
    assert ready.installs() == [step.format(venv=ready.repo / ".venv") for step in (INSTALL, MEGATRON)]
    assert (ready.repo / ".venv/.nereus-stamp").read_text().startswith("complete ")
    for arguments, told in (((), "is complete"), (("--quiet",), ""), (("--check",), "is complete")):
        result = ready.setup(*arguments)
        assert result.returncode == 0
        assert told in result.stdout and bool(result.stdout) == bool(told)
    assert len(ready.installs()) == 2


def test_a_complete_environment_needs_neither_python_nor_uv_nor_compiler(ready):
    for name in ("python3.12", "uv", "cc"):
        (ready.bin / name).unlink()
    assert ready.setup().returncode == 0


def test_check_changes_nothing_where_there_is_no_environment(machine):
    machine.python("python3.12")
    machine.uv()
    result = machine.setup("--check")
    assert result.returncode == 1
    assert "run make setup" in result.stdout
    assert not (machine.repo / ".venv").exists()


@pytest.mark.parametrize(
    ("file", "line", "complete"),
    [
        ("constraints/cpu.txt", "a-new-pin==1", False),
        ("constraints/overrides.txt", "another==2", False),
        ("constraints/megatron.txt", "one-more==3", False),
        ("constraints/megatron-0.18.txt", "one-more==3", True),
        ("verl_ext/__init__.py", '__version__ = "99"', False),
        ("pyproject.toml", '[project.entry-points."verl.plugins2"]\nx = "y"', False),
        ("pyproject.toml", "[tool.ruff.lint.extra]\nx = 1", True),
        ("pyproject.toml", "# a comment", True),
        ("constraints/build.txt", "# a comment", True),
    ],
)
def test_only_what_the_environment_is_made_from_makes_it_out_of_date(complete_once, file, line, complete):
    path = complete_once.repo / file
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    assert complete_once.setup("--check").returncode == (0 if complete else 1)
    path.write_text(before)
    assert complete_once.setup("--check").returncode == 0


def test_out_of_date_is_updated_in_place(ready):
    kept = ready.repo / ".venv/kept"
    kept.touch()
    with (ready.repo / "constraints/cpu.txt").open("a") as out:
        out.write("a-new-pin==1\n")
    result = ready.setup()
    assert result.returncode == 0
    assert "up to date" in result.stdout
    assert kept.exists()
    assert len(ready.installs()) == 4
    assert ready.setup("--check").returncode == 0


def test_a_damaged_environment_is_repaired(ready):
    site = "lib/python3.12/site-packages"
    for missing in ("bin/python", "bin/nereus", f"{site}/vllm", f"{site}/megatron"):
        path = ready.repo / ".venv" / missing
        shutil.rmtree(path) if path.is_dir() else path.unlink()
        assert ready.setup("--check").returncode == 1
        assert ready.setup().returncode == 0
        assert ready.setup("--check").returncode == 0


def test_an_environment_that_moved_with_its_folder_is_made_again(ready):
    moved = ready.repo.rename(ready.home / "moved")
    ready.repo = moved
    assert ready.setup("--check").returncode == 1
    result = ready.setup()
    assert result.returncode == 0
    assert "it was made in another place" in result.stdout


def test_a_link_to_another_disk_stays_a_link(machine):
    machine.python("python3.12")
    machine.uv()
    disk = machine.home / "disk"
    disk.mkdir()
    os.symlink(disk, machine.repo / ".venv")
    for arguments in ((), ("--reinstall",)):
        assert machine.setup(*arguments).returncode == 0
        assert (machine.repo / ".venv").is_symlink()
    assert len(machine.installs()) == 4


def test_a_folder_that_is_no_environment_is_left_alone(machine):
    machine.python("python3.12")
    machine.uv()
    precious = machine.repo / ".venv/precious"
    precious.parent.mkdir()
    precious.touch()
    result = machine.setup()
    assert result.returncode == 1
    assert "is no virtual environment" in result.stderr
    assert precious.exists()


def test_reinstall_starts_from_nothing(ready):
    left = ready.repo / ".venv/left-over"
    left.touch()
    assert ready.setup("--reinstall").returncode == 0
    assert not left.exists()


def test_reinstall_without_a_python_leaves_the_environment(ready):
    (ready.bin / "python3.12").unlink()
    assert ready.setup("--reinstall").returncode == 1
    assert ready.setup("--check").returncode == 0


def test_an_activated_environment_is_not_what_replaces_it(ready):
    shutil.copy(ready.bin / "uv", ready.repo / ".venv/bin/uv")
    result = ready.setup("--reinstall", PATH=f"{ready.repo}/.venv/bin:{ready.bin}")
    assert result.returncode == 0, result.stderr
    assert not (ready.repo / ".venv/bin/uv").exists()


def test_another_python_makes_it_again(ready):
    other = ready.home / "python/bin/python3.12"
    other.parent.mkdir(parents=True)
    # The same Python under another name is another one only when its base executable differs: pretend.
    ready.python(other, f'sys._base_executable = "{other}"')
    result = ready.setup("--python", str(other))
    assert f"it is made with another Python than {other}" in result.stdout


def test_the_other_megatron_is_replaced_by_the_default(ready):
    kept = ready.repo / ".venv/kept"
    kept.touch()
    other = ("--no-deps", "-r", "constraints/megatron-0.18.txt")
    assert ready.run("uv", "pip", "install", "--python", ".venv/bin/python", *other).returncode == 0
    assert ready.setup("--check").returncode == 1
    assert "up to date" in ready.setup().stdout
    assert ready.setup("--check").returncode == 0
    assert kept.exists()


@pytest.mark.parametrize("before", [[], ["done"]], ids=["first step", "second step"])
@pytest.mark.parametrize("how", ["killed", "interrupted"])
def test_cut_short_is_made_again(machine, how, before):
    machine.python("python3.12")
    machine.uv(*before, how)
    result = machine.setup()
    assert result.returncode == {"killed": -9, "interrupted": 130}[how]
    assert ("stopped" in result.stderr) == (how == "interrupted")
    assert machine.setup("--check").returncode == 1
    result = machine.setup()
    assert result.returncode == 0
    assert "an earlier set-up was cut short" in result.stdout
    assert machine.setup("--check").returncode == 0


def test_one_failed_download_is_tried_again(machine):
    machine.python("python3.12")
    machine.uv("network")
    result = machine.setup()
    assert result.returncode == 0
    assert "(network), trying once more" in result.stdout
    assert len(machine.installs()) == 3


def test_a_failed_second_step_is_tried_again_then_told_and_finished_by_the_next_run(machine):
    machine.python("python3.12")
    machine.uv("done", "network", "done", "network")
    result = machine.setup()
    assert result.returncode == 1
    assert "(network), trying once more" in result.stdout
    assert "failed: installing: the package index cannot be reached" in result.stderr
    assert machine.setup("--check").returncode == 1
    result = machine.setup()
    assert result.returncode == 0
    assert "bringing" in result.stdout and "up to date" in result.stdout
    assert machine.setup("--check").returncode == 0


@pytest.mark.parametrize(
    ("outcome", "tries", "told"),
    [
        ("network", 2, "the package index cannot be reached"),
        ("conflict", 1, "the pinned versions do not fit together or are no longer to be had: "
                        "error: No solution found when resolving dependencies cause: Because a==1 is gone"),
        ("disk", 1, "the disk is full"),
    ],
)  # fmt: skip
def test_a_failure_is_one_message_with_its_cause_and_the_log(machine, outcome, tries, told):
    machine.python("python3.12")
    machine.uv(*[outcome] * tries)
    result = machine.setup()
    assert result.returncode == 1
    assert len(machine.installs()) == tries
    failure, log = result.stderr.splitlines()
    assert failure.startswith(f"setup: failed: installing: {told}")
    assert log == f"  full log: {machine.repo}/.venv/setup.log"
    assert "error: " in (machine.repo / ".venv/setup.log").read_text()
    assert machine.setup("--check").returncode == 1
    assert machine.setup().returncode == 0


def test_a_failed_update_keeps_the_environment(ready):
    with (ready.repo / "constraints/cpu.txt").open("a") as out:
        out.write("\na-new-pin==1\n")
    ready.uv("conflict")
    assert ready.setup().returncode == 1
    ready.uv()
    assert "up to date" in ready.setup().stdout


def test_an_update_that_cannot_be_imported_is_made_again_from_nothing(ready):
    with (ready.repo / "constraints/cpu.txt").open("a") as out:
        out.write("\na-new-pin==1\n")
    ready.uv("broken")
    result = ready.setup()
    assert result.returncode == 0
    assert "the import check failed (import torch: OSError: no libc10.so)" in result.stdout


def test_a_new_environment_that_cannot_be_imported_is_a_failure(machine):
    machine.python("python3.12")
    machine.uv("broken")
    result = machine.setup()
    assert result.returncode == 1
    assert "failed: the import check: import torch: OSError" in result.stderr
    assert machine.setup("--check").returncode == 1


def test_no_compiler(machine):
    machine.python("python3.12")
    machine.uv()
    (machine.bin / "cc").unlink()
    result = machine.setup()
    assert result.returncode == 1
    assert "there is no C compiler" in result.stderr
    machine.script("mycc", "exit 0")
    assert machine.setup(CC="mycc -m64").returncode == 0


def test_an_old_uv_on_the_path_is_not_used(machine):
    machine.python("python3.12", 'sys.modules["ensurepip"] = None')
    machine.uv(version="0.4.30")
    result = machine.setup()
    assert result.returncode == 1
    assert "without ensurepip" in result.stderr  # it would have to get a newer one with pip


def test_the_caller_cannot_bend_it(machine):
    machine.python("python3.12")
    machine.uv()
    nonsense = str(machine.home / "nonsense")
    variables = ("PYTHONHOME", "PYTHONPATH", "VIRTUAL_ENV", "UV_CONSTRAINT", "UV_OVERRIDE", "UV_PYTHON", "UV_TARGET")
    assert machine.setup(**dict.fromkeys(variables, nonsense)).returncode == 0


def test_unknown_options_and_help(machine):
    assert machine.setup("--no-such-option").returncode == 2
    assert "--reinstall" in machine.setup("--help").stdout


@pytest.mark.skipif(shutil.which("make") is None, reason="no make")
class TestMake:
    def test_the_settings_of_the_demo_reach_the_command_as_they_are(self, ready):
        result = ready.run("make", "demo", "MODEL=my model", "DATA=it's here", "STEPS=3", "ENGINE=megatron")
        assert result.returncode == 0, result.stderr
        assert result.stdout.splitlines() == [
            *("demo", "--model", "my model", "--data", "it's here", "--steps", "3", "--engine", "megatron"),
        ]  # fmt: skip

    def test_without_settings_the_command_has_its_own_defaults(self, ready):
        assert ready.run("make", "demo").stdout.splitlines() == ["demo"]
        assert ready.run("make", "demo", REWARD="reward.py:score").stdout.splitlines() == [
            "demo",
            "--reward",
            "reward.py:score",
        ]

    def test_help_is_the_default_and_names_every_target(self, machine):
        result = machine.run("make")
        for target in (
            "setup",
            "demo",
            "test",
            "test-unit",
            "test-e2e",
            "test-all",
            "lint",
            "format",
            "doctor",
            "clean-runs",
        ):
            assert f"make {target} " in result.stdout

    def test_a_failed_set_up_stops_the_target(self, machine):
        result = machine.run("make", "test")
        assert result.returncode != 0
        assert "there is no complete Python 3.12" in result.stderr
