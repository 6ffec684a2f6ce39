"""What the documents name is there: links, pictures, commands, options, patches."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer.main

from verl_ext import cli, config
from verl_ext.compat.versions import TABLE
from verl_ext.integrations.features import GROUP

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")
TARGETS = set(re.findall(r"^\.PHONY: ([\w-]+)$", MAKEFILE, re.MULTILINE))
VARIABLES = {*re.findall(r"^export (.+)$", MAKEFILE, re.MULTILINE)[0].split(), "ARGS"}
NEREUS = typer.main.get_command(cli.app)


def check_make(arguments: list[str]) -> None:
    """Targets exist and variables are ones that the Makefile hands on."""
    for argument in arguments:
        name, is_setting, _value = argument.partition("=")
        assert name in (VARIABLES if is_setting else TARGETS), f"make has no {argument}"


def check_nereus(arguments: list[str]) -> None:
    """The command exists and takes these options, with values of their type. Nothing is run."""
    if arguments and arguments[0] not in ("--help", "--version"):
        command = NEREUS.get_command(None, arguments[0])
        assert command is not None, f"nereus has no command {arguments[0]}"
        command.make_context(arguments[0], arguments[1:])


def test_commands_exist(document):
    for command in document.commands:
        if command.startswith("make"):
            check_make(shlex.split(command)[1:])
        elif command.startswith("nereus"):
            check_nereus(shlex.split(command)[1:])


def test_commands_in_the_text_exist(document):
    for command in re.findall(r"`((?:make|nereus) [a-z][^`]*)`", document.prose):
        name, first = command.split()[:2]
        if name == "make":
            assert first in TARGETS, command
        else:
            assert NEREUS.get_command(None, first) is not None, command


@pytest.mark.parametrize("arguments", ["demo --speed 3", "demo --steps many", "train"])
def test_a_wrong_command_would_be_found(arguments):
    with pytest.raises(Exception, match=r"(?i)no such option|valid integer|no command"):
        check_nereus(arguments.split())


@pytest.mark.parametrize("arguments", ["demos", "demo MODELL=x"])
def test_a_wrong_make_target_would_be_found(arguments):
    with pytest.raises(AssertionError, match="make has no"):
        check_make(arguments.split())


def test_links_and_pictures_exist(document):
    links = re.findall(r"\]\(([^)\s]+)\)", document.prose)
    links += re.findall(r'(?:src|srcset|href)="([^"]+)"', document.prose)
    for link in links:
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (document.path.parent / path).resolve() if path else document.path
        assert target.exists(), f"{link} is not there"
        if anchor:
            assert anchor in type(document)(target).anchors, f"{path} has no heading {anchor}"


def test_options_exist(document):
    options = config.keys()
    # Besides the options: the group of entry points for features of other packages.
    known = {f"nereus.{key}" for key in options} | {GROUP}
    groups = {key.rpartition(".")[0] for key in known}
    for name in re.findall(r"(?<![\w./-])nereus\.[a-z_]+(?:\.[a-z_]+)?", document.text):
        assert name in known | groups, f"{name} is no option"


def test_documents_are_about_the_package_and_no_particular_machine(document):
    for word in ("/work/", "/root/", "/home/", "pypi", "TODO"):
        assert word not in document.text


def test_pictures_are_small():
    for picture in (ROOT / "docs" / "images").iterdir():
        assert picture.stat().st_size < 120_000, picture.name


def test_the_versions_of_the_readme_are_the_tested_ones():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    table = re.search(
        r"^\| \| (verl .*) \|\n.*\n\| tested \| (.*) \|\n\| another version \| (.*) \|$", text, re.MULTILINE
    )
    assert table is not None
    names, versions, others = (row.split(" | ") for row in table.groups())
    rows = {row.name: row for row in TABLE}
    assert sorted(names) == sorted(rows)
    for name, version, other in zip(names, versions, others, strict=True):
        assert version.split()[0] in rows[name].releases, name
        assert other == ("refused" if rows[name].binding else "named"), name
