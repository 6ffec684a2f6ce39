"""Which Python 3.12 set-up takes, on machines where the first one found is not a working one."""

import pytest

OLD = "sys.version_info = (3, 11, 7)"
NO_SSL = 'sys.modules["ssl"] = None'
NO_ENSUREPIP = 'sys.modules["ensurepip"] = None'
NO_HEADERS = 'import sysconfig; sysconfig.get_path = lambda name: "/nowhere"'
NOT_INSTALLED = "echo 'pyenv: python3.12: command not found' >&2; exit 127"


def pretend_to_be(machine, path, name):
    """A complete Python 3.12 that gives `name` as its own path, to tell several apart."""
    return machine.python(path, f'sys._base_executable = "{name}"')


@pytest.fixture
def found(machine):
    def find(*arguments, **environment):
        result = machine.setup("--find-python", *arguments, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout.strip()

    return find


def test_takes_the_python_itself_not_the_shim(machine, found):
    machine.python("python3.12")
    assert found() == machine.real_python


def test_passes_over_a_shim_that_fails_and_a_python_that_is_too_old(machine, found):
    machine.script("python3.12", NOT_INSTALLED)
    machine.python("python3", OLD)
    pretend_to_be(machine, "python", "good")
    assert found() == "good"


def test_passes_over_a_failing_shim_to_the_same_name_further_along_the_path(machine, found):
    machine.script("python3.12", NOT_INSTALLED)
    pretend_to_be(machine, machine.home / "opt/python3.12", "further")
    assert found(PATH=f"{machine.bin}:{machine.home}/opt") == "further"


@pytest.mark.parametrize("lacks", [NO_SSL, NO_ENSUREPIP])
def test_passes_over_an_incomplete_python(machine, found, lacks):
    machine.python("python3.12", lacks)
    pretend_to_be(machine, "python3", "complete")
    assert found() == "complete"


def test_ensurepip_is_not_needed_where_there_is_a_uv(machine, found):
    machine.uv()
    machine.python("python3.12", NO_ENSUREPIP)
    assert found() == machine.real_python


def test_prefers_a_python_with_headers_and_takes_one_without_in_need(machine, found):
    machine.python("python3.12", f'{NO_HEADERS}; sys._base_executable = "bare"')
    assert found() == "bare"
    pretend_to_be(machine, "python3", "with headers")
    assert found() == "with headers"


@pytest.mark.parametrize(
    "where", [".pyenv/versions/3.12.1/bin/python", ".local/share/uv/python/cpython-3.12.7/bin/python3.12"]
)
def test_finds_what_a_version_manager_has_installed_but_not_chosen(machine, found, where):
    machine.script("python3.12", NOT_INSTALLED)
    pretend_to_be(machine, machine.home / where, "installed")
    assert found() == "installed"


def test_asks_pyenv_for_its_root(machine, found):
    machine.script("pyenv", f'[ "$1" = root ] && echo "{machine.home}/elsewhere"')
    pretend_to_be(machine, machine.home / "elsewhere/versions/3.12.9/bin/python", "installed")
    assert found() == "installed"


def test_asks_uv(machine, found):
    machine.uv()
    (machine.home / "uv-python").write_text(
        str(pretend_to_be(machine, machine.home / "somewhere/python3.12", "from uv"))
    )
    assert found() == "from uv"


def test_the_variable_and_the_option_come_first(machine, found):
    machine.python("python3.12")
    variable = pretend_to_be(machine, machine.home / "variable", "variable")
    option = pretend_to_be(machine, machine.home / "option", "option")
    assert found(NEREUS_PYTHON=str(variable)) == "variable"
    assert found("--python", str(option), NEREUS_PYTHON=str(variable)) == "option"
    assert found(f"--python={option}") == "option"
    assert found("--python", "../home/option") == "option"
    assert found("--python", "python3.12") == machine.real_python


def test_a_named_python_that_does_not_do_is_refused_even_when_there_is_another(machine):
    machine.python("python3.12")
    old = machine.python(machine.home / "old", OLD)
    result = machine.setup("--find-python", NEREUS_PYTHON=str(old))
    assert result.returncode == 1
    assert f"{old} is Python 3.11.7" in result.stderr
    assert "NEREUS_PYTHON" in result.stderr


def test_none_is_told_with_what_was_tried_and_what_to_install(machine):
    machine.script("python3.12", NOT_INSTALLED)
    machine.python("python3", OLD)
    machine.python("python", NO_SSL)
    result = machine.setup()
    assert (result.returncode, result.stdout) == (1, "")
    told = result.stderr.splitlines()
    assert told[0] == "setup: failed: there is no complete Python 3.12 on this machine"
    assert told[1:4] == [
        f"  {machine.bin}/python3.12 does not run (exit 127)",
        f"  {machine.bin}/python3 is Python 3.11.7",
        f"  {machine.bin}/python is Python {machine.version} without ssl",
    ]
    assert "apt-get install python3.12" in told[4]
    assert len(told) <= 6
    assert not (machine.repo / ".venv").exists()


def test_no_python_at_all(machine):
    result = machine.setup()
    assert result.returncode == 1
    assert "there is no python3.12, python3 or python on the PATH" in result.stderr
