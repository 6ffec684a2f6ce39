#!/usr/bin/env bash
# Make the environment in .venv: verl, vLLM for the CPU, Megatron, this package and its development tools, all pinned.
#
#   scripts/setup.sh                 make it, finish or update it; returns at once when it is complete
#   scripts/setup.sh --quiet         the same, without a word when there is nothing to do (what `make` calls)
#   scripts/setup.sh --check         exit 0 when the environment is complete and up to date, 1 when not; changes nothing
#   scripts/setup.sh --reinstall     throw the environment away and make it again
#   scripts/setup.sh --python PATH   use this Python 3.12 (the variable NEREUS_PYTHON does the same)
#   scripts/setup.sh --find-python   print the Python 3.12 that would be used
#
# Safe to interrupt and to run twice at once: .venv/.nereus-stamp says `installing` from the first change on, and gets the
# digest of all that the environment is made from only when everything is installed and an import check has passed.
set -u

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)
VENV=$ROOT/.venv
[ ! -L "$VENV" ] || [ ! -d "$VENV" ] || VENV=$(cd "$VENV" && pwd -P) # a link to another disk
STAMP=$VENV/.nereus-stamp
# What an activated .venv puts on the PATH is about to be replaced.
PATH=:$PATH: PATH=${PATH//":$VENV/bin:"/:} PATH=${PATH//":$ROOT/.venv/bin:"/:} PATH=${PATH#:} PATH=${PATH%:}
PYTHON=$VENV/bin/python
MINIMUM_UV=0.5 # the first with every option used below

# Nothing from the caller may bend what is installed or imported; mirrors, proxies and caches stay as configured.
export HOME="${HOME:-/}"
unset PYTHONHOME PYTHONPATH PYTHONSTARTUP VIRTUAL_ENV CONDA_PREFIX PIP_TARGET PIP_PREFIX PIP_USER
unset UV_CONSTRAINT UV_OVERRIDE UV_EXCLUDE UV_BUILD_CONSTRAINT UV_PYTHON UV_SYSTEM_PYTHON UV_TARGET UV_PREFIX UV_RESOLUTION UV_PRERELEASE UV_EXCLUDE_NEWER UV_NO_DEPS
export PIP_DISABLE_PIP_VERSION_CHECK=1 UV_NO_PROGRESS=1 NO_COLOR=1
export UV_HTTP_TIMEOUT="${UV_HTTP_TIMEOUT:-900}"
export UV_CONCURRENT_DOWNLOADS="${UV_CONCURRENT_DOWNLOADS:-6}"
# The machine's own certificates (a company's proxy signs with its own); the second try does without.
export UV_SYSTEM_CERTS="${UV_SYSTEM_CERTS:-1}" UV_NATIVE_TLS="${UV_NATIVE_TLS:-1}"

LOG=
MODE=setup
QUIET=
REQUESTED=${NEREUS_PYTHON:-}

say() { printf 'setup: %s\n' "$*"; }

fail() { # fail MESSAGE [LINE...]: the one message of a failed set-up
  printf 'setup: failed: %s\n' "$1" >&2
  shift
  [ $# -eq 0 ] || printf '  %s\n' "$@" >&2
  if [ -s "$LOG" ]; then printf '  full log: %s\n' "$LOG" >&2; elif [ -n "$LOG" ]; then rm -f "$LOG"; fi
  exit 1
}

stop() { # stop NAME STATUS: Ctrl-C and kill
  trap - INT TERM
  printf '\nsetup: %s; what was downloaded is kept, run it again to go on\n' "$1" >&2
  exit "$2"
}

# ---------------------------------------------------------------------------------------------- is it complete?

sha256() {
  if command -v sha256sum >/dev/null 2>&1; then sha256sum; else shasum -a 256; fi | cut -d' ' -f1
}

digest() { # of the pins, the parts of pyproject.toml that an installation depends on, the version, and the place
  {
    cat "$ROOT/constraints/cpu.txt" "$ROOT/constraints/overrides.txt" "$ROOT/constraints/megatron.txt"
    awk '/^\[/ { used = !/^\[+tool\./ || /^\[tool\.hatch/ } used && !/^[ \t]*(#|$)/' "$ROOT/pyproject.toml"
    grep '^__version__' "$ROOT/verl_ext/__init__.py"
    printf '%s\n' "$ROOT"
  } | sha256
}

# The stamp is one line: `installing`, or `complete DIGEST` and, after a tab, the Python that was asked for (may be empty).
complete() {
  local line part site=$VENV/lib/python3.12/site-packages
  [ -f "$STAMP" ] && [ -x "$PYTHON" ] && [ -x "$VENV/bin/nereus" ] && [ -x "$VENV/bin/pytest" ] || return 1
  for part in torch transformers ray verl vllm megatron; do
    [ -d "$site/$part" ] || return 1
  done
  # Someone may have tried another pair by hand (constraints/megatron-0.18.txt).
  while IFS= read -r line; do
    case $line in megatron-*==*) ;; *) continue ;; esac
    line=${line//-/_}
    [ -d "$site/${line/==/-}.dist-info" ] || return 1
  done <"$ROOT/constraints/megatron.txt"
  IFS= read -r line <"$STAMP" || return 1
  [ "${line%%$'\t'*}" = "complete $(digest)" ] || return 1
  [ -z "$REQUESTED" ] || [ "${line#*$'\t'}" = "$REQUESTED" ]
}

write_stamp() { printf '%s\n' "$1" >"$STAMP.new" && mv -f "$STAMP.new" "$STAMP"; }

# ---------------------------------------------------------------------------------------------- find a Python 3.12

# Prints `ok EXECUTABLE VERSION HEADERS` (separated by tabs) or `no REASON`. Any Python from 2.7 on can read it.
PROBE='
import sys
version = ".".join(str(n) for n in sys.version_info[:3])
if sys.version_info[:2] != (3, 12):
    print("no\tis Python " + version); sys.exit()
missing = []
for name in ["bz2", "ctypes", "lzma", "sqlite3", "ssl", "venv", "zlib"] + sys.argv[1:]:
    try:
        __import__(name)
    except Exception:
        missing.append(name)
if missing:
    print("no\tis Python " + version + " without " + ", ".join(missing)); sys.exit()
import os, sysconfig
headers = os.path.exists(os.path.join(sysconfig.get_path("include"), "Python.h"))
print("\t".join(["ok", getattr(sys, "_base_executable", None) or sys.executable, version, "headers" if headers else "bare"]))
'

limited() { # a shim may also hang
  if command -v timeout >/dev/null 2>&1; then timeout 60 "$@"; else "$@"; fi
}

probe() { # probe PYTHON: PROBE's answer, or `no does not run (exit N)`
  local answer status need=
  [ -n "$UV" ] || need=ensurepip # only needed to get uv
  # In a directory of its own, so that no .python-version of this or an upper folder decides.
  # shellcheck disable=SC2086
  answer=$(cd / && limited "$1" -I -c "$PROBE" $need 2>/dev/null </dev/null)
  status=$?
  if [ $status -ne 0 ] || [ -z "$answer" ]; then printf 'no\tdoes not run (exit %s)\n' $status; else printf '%s\n' "$answer"; fi
}

candidates() { # one path a line, best first
  local directory name root
  local IFS=:
  for name in python3.12 python3 python; do
    for directory in $PATH; do
      [ -z "$directory" ] || [ ! -x "$directory/$name" ] || [ -d "$directory/$name" ] || printf '%s\n' "$directory/$name"
    done
  done
  # A shim runs only the versions that were chosen with `pyenv global`; the others are installed all the same.
  root=${PYENV_ROOT:-$(pyenv root 2>/dev/null </dev/null)}
  for root in "$root" "$HOME/.pyenv" "$HOME/.local/share/uv/python"; do
    for name in "$root"/versions/3.12*/bin/python "$root"/*3.12*/bin/python3.12; do
      [ ! -x "$name" ] || printf '%s\n' "$name"
    done
  done
  [ -z "$UV" ] || "$UV" python find --no-project --no-python-downloads 3.12 2>/dev/null </dev/null
}

# Sets FOUND, FOUND_VERSION, FOUND_HEADERS; fails when there is none.
find_python() {
  local candidate answer seen=$'\n\n' tried=() bare=
  if [ -n "$REQUESTED" ]; then
    candidate=$REQUESTED
    case $candidate in
      /*) ;;
      */*) candidate=$PWD/$candidate ;;
      *) candidate=$(command -v "$candidate" || printf '%s' "$candidate") ;;
    esac
    answer=$(probe "$candidate")
    [ "${answer%%$'\t'*}" = ok ] || fail "$REQUESTED ${answer#*$'\t'}" \
      "It was asked for with --python or NEREUS_PYTHON, and a complete Python 3.12 is needed."
    take_python "$answer"
    return
  fi
  while IFS= read -r candidate; do
    case $seen in *$'\n'"$candidate"$'\n'*) continue ;; esac # an empty line too
    seen=$seen$candidate$'\n'
    answer=$(probe "$candidate")
    case $answer in
      ok*headers) take_python "$answer"; return ;;
      ok*) [ -n "$bare" ] || bare=$answer ;;
      *) tried+=("$candidate ${answer#*$'\t'}") ;;
    esac
  done <<<"$(candidates)"
  if [ -n "$bare" ]; then take_python "$bare"; return; fi
  [ ${#tried[@]} -gt 0 ] || tried=("there is no python3.12, python3 or python on the PATH")
  [ ${#tried[@]} -le 6 ] || tried=("${tried[@]:0:6}" "... and $((${#tried[@]} - 6)) more")
  fail "there is no complete Python 3.12 on this machine" "${tried[@]}" \
    "Install one: apt-get install python3.12 python3.12-venv python3.12-dev, or pyenv install 3.12, or uv python install 3.12." \
    "One that is not on the PATH can be named: NEREUS_PYTHON=/path/to/python3.12 make setup"
}

take_python() {
  IFS=$'\t' read -r _ FOUND FOUND_VERSION FOUND_HEADERS <<<"$1"
}

# ---------------------------------------------------------------------------------------------- the environment's folder

# Prints why .venv cannot be kept; nothing when it can, or when there is none.
unusable() {
  local line="" answer
  [ -e "$VENV" ] || return 0
  [ ! -f "$STAMP" ] || IFS= read -r line <"$STAMP"
  if [ "$line" = installing ]; then echo "an earlier set-up was cut short"; return; fi
  if [ ! -x "$PYTHON" ]; then echo "its Python is gone"; return; fi
  if ! grep -qsF "$VENV" "$VENV/bin/activate"; then echo "it was made in another place"; return; fi
  answer=$(limited "$PYTHON" -I -c 'import sys; print("%d.%d\t%s" % (sys.version_info[0], sys.version_info[1], sys._base_executable))' 2>/dev/null </dev/null)
  if [ "${answer%%$'\t'*}" != 3.12 ]; then echo "its Python is not a working 3.12"; return; fi
  if [ -n "$REQUESTED" ]; then
    find_python
    [ "${answer#*$'\t'}" -ef "$FOUND" ] || echo "it is made with another Python than $REQUESTED"
  fi
}

remove_venv() { # what is in it, not the folder itself
  [ -e "$VENV" ] || return 0
  if [ ! -f "$VENV/pyvenv.cfg" ] && [ ! -f "$STAMP" ] && [ -n "$(ls -A "$VENV")" ]; then
    fail "$VENV is there and is no virtual environment" "Move it away, and run this again."
  fi
  # The stamp goes last, so that a removal that is cut short is known for what it is.
  write_stamp installing
  find "$VENV/" -mindepth 1 -maxdepth 1 ! -name "${STAMP##*/}" -exec rm -rf {} + || fail "cannot remove $VENV"
}

make_venv() { # in place of what is there
  local pip=
  [ -z "$UV" ] || pip=--without-pip
  find_python
  remove_venv
  say "Python $FOUND_VERSION: $FOUND"
  [ "$FOUND_HEADERS" = headers ] || say "note: it has no Python.h (Debian: python3.12-dev); torch.compile and Triton kernels will not work"
  if ! { mkdir -p "$VENV" && write_stamp installing; }; then fail "cannot write to $VENV" "$(space)"; fi
  # shellcheck disable=SC2086
  logged "$FOUND" -m venv $pip "$VENV" || fail "$FOUND -m venv: $(reason)"
}

# ---------------------------------------------------------------------------------------------- install

usable_uv() { # usable_uv PATH: it runs and is new enough
  local version
  version=$(limited "$1" --version 2>/dev/null </dev/null) || return 1
  version=${version#uv } version=${version%% *}
  [ "$(printf '%s\n%s\n' "$MINIMUM_UV" "$version" | sort -V | head -n 1)" = "$MINIMUM_UV" ]
}

get_uv() { # sets UV: the one on the PATH, the one in .venv, or a new one in .venv
  local pin try
  [ -z "$UV" ] || return 0
  if [ -x "$VENV/bin/uv" ] && usable_uv "$VENV/bin/uv"; then UV=$VENV/bin/uv; return; fi
  "$PYTHON" -m pip --version >/dev/null 2>&1 || logged "$PYTHON" -m ensurepip || fail "$PYTHON -m ensurepip: $(reason)"
  pin=$(grep '^uv==' "$ROOT/constraints/build.txt")
  # A pip that is configured to an index without this version still finds some other; all else is pinned.
  for try in "$pin" "uv>=$MINIMUM_UV"; do
    logged "$PYTHON" -m pip install --quiet --no-input "$try" && UV=$VENV/bin/uv && return
  done
  fail "pip could not install uv: $(reason)" "A uv on the PATH is used where there is one."
}

logged() { # logged COMMAND...: its output goes to the log, after a line that begins with `$ `
  printf '\n$ %s   (%s)\n' "$*" "$(date)" >>"$LOG"
  "$@" >>"$LOG" 2>&1 </dev/null 8>&-
}

last_output() { awk '/^\$ / { n = 0; next } NF { line[n++] = $0 } END { for (i = 0; i < n; i++) print line[i] }' "$LOG" 2>/dev/null; }

free_kb() { df -Pk "$ROOT" 2>/dev/null | awk 'NR == 2 { print $4 }'; }

space() { free_kb | awk '{ printf "%.1f GB free", $1 / 1e6 }'; }

# What the last logged command failed of: one of the usual causes, or `other`.
kind() {
  local output free
  free=$(free_kb)
  output=$(last_output | tail -n 60)
  if [ "${free:-999999}" -lt 20000 ] || grep -qiE 'no space left|os error 28|disk quota' <<<"$output"; then echo disk
  elif grep -qiE 'certificate|UnknownIssuer' <<<"$output"; then echo certificate
  elif grep -qiE 'error sending request|dns error|failed to (lookup|fetch|download)|name resolution|connection ?(error|refused|reset|closed|aborted|timed)|timed out|unreachable|no matching distribution' <<<"$output"; then echo network
  elif grep -qiE 'no solution found|unsatisfiable' <<<"$output"; then echo conflict
  elif grep -qiE "(gcc|clang|cc|c\+\+)['\"]? (failed|not found)|compiler|Python\.h" <<<"$output"; then echo compiler
  else echo other; fi
}

reason() {
  local output words
  output=$(last_output)
  words=$({ grep -iE '^(error|fatal)' || tail -n 1; } <<<"$output" | tail -n 1; grep -E '^ *cause:' <<<"$output" | tail -n 1)
  words=$(tr -s ' \n' ' ' <<<"$words" | cut -c1-400)
  case $(kind) in
    disk) echo "the disk is full (in $ROOT: $(space); a complete environment takes about 7 GB, and the download cache as much again when it is on another disk): $words" ;;
    conflict) echo "the pinned versions do not fit together or are no longer to be had: $words" ;;
    certificate) echo "the package index's certificate is not trusted (SSL_CERT_FILE for uv and PIP_CERT for pip name other ones): $words" ;;
    network) echo "the package index cannot be reached or does not answer (network, proxy or mirror settings?): $words" ;;
    compiler) echo "something had to be compiled, and that did not work: $words" ;;
    *) echo "${words:-no output}" ;;
  esac
}

# A word a minute: a cold download of several GB is silent otherwise, and some CIs kill what is silent.
# Its standard input is a pipe from this shell, so it ends when the shell closes it or dies, in whatever way.
heartbeat() {
  local started=$SECONDS status
  while :; do
    read -r -t 60 _
    status=$?
    [ $status -gt 128 ] || return 0 # above: 60 seconds have passed
    say "... still installing after $((SECONDS - started)) s ($(du -sm "$VENV" 2>/dev/null | cut -f1) MB so far)"
  done
}

uv_install() {
  cd "$ROOT" || return
  logged "$UV" pip install --python "$PYTHON" --override constraints/overrides.txt -c constraints/cpu.txt \
    --build-constraint constraints/build.txt -e '.[cpu,dev]' || return
  # What these require does not fit with the rest (see the file). Without dependencies there is nothing to override.
  logged "$UV" pip install --python "$PYTHON" --no-deps --build-constraint constraints/build.txt -r constraints/megatron.txt
}

give_up() {
  # uv changes nothing before it has all that it needs: after these the environment is as it was, or all but Megatron is
  # installed, and it can be kept.
  case $(kind) in conflict | certificate | network) rm -f "$STAMP" ;; esac
  fail "installing: $(reason)"
}

install() {
  local started=$SECONDS count why
  count=$(cat "$ROOT/constraints/cpu.txt" "$ROOT/constraints/megatron.txt" | grep -c ==)
  say "installing up to $count pinned packages (about 7 GB; slow only while the download cache is empty)"
  exec 8> >(heartbeat 9>&-)
  if ! uv_install; then
    why=$(kind)
    case $why in
      disk | conflict) give_up ;;
      certificate) export UV_SYSTEM_CERTS=0 UV_NATIVE_TLS=0 ;;
    esac
    say "installing failed after $((SECONDS - started)) s ($why), trying once more"
    uv_install || give_up
  fi
  exec 8>&-
  say "installed ($((SECONDS - started)) s)"
}

import_check() { # prints what is wrong
  "$PYTHON" -I "$ROOT/scripts/check_imports.py" "$ROOT" 2>>"$LOG" </dev/null
}

# ---------------------------------------------------------------------------------------------- main

main() {
  local why problem started kept=

  case "$(uname -s) $(uname -m)" in
    "Linux x86_64" | "Linux aarch64") ;;
    *) fail "this is $(uname -s) $(uname -m)" "The CPU build of vLLM exists for Linux on x86_64 and aarch64 only." ;;
  esac
  for why in "${CC:-cc}" gcc clang ''; do
    [ -n "$why" ] || fail "there is no C compiler (cc, gcc or clang)" "Install one, e.g. apt-get install build-essential."
    ! command -v "${why%% *}" >/dev/null 2>&1 || break
  done

  # One set-up at a time; the lock is on the folder itself and goes with the process.
  if command -v flock >/dev/null 2>&1; then
    exec 9<"$ROOT"
    if ! flock -n 9; then
      say "another set-up is running in this folder, waiting for it"
      flock 9
    fi
    if [ "$MODE" != reinstall ] && complete; then say "$VENV is complete"; return; fi
  fi

  LOG=$(mktemp "${TMPDIR:-/tmp}/nereus-setup.XXXXXX") || fail "cannot write to ${TMPDIR:-/tmp}"
  UV=$(command -v uv 2>/dev/null) && usable_uv "$UV" || UV=
  why=$(unusable) || exit 1 # a message has been printed
  if [ "$MODE" = reinstall ]; then why="asked for"; fi
  if [ -e "$VENV" ] && [ -z "$why" ]; then
    kept=1
    say "bringing $VENV up to date"
  elif [ -e "$VENV" ]; then
    say "making $VENV again: $why"
  fi

  while :; do
    [ -n "$kept" ] || make_venv
    write_stamp installing || fail "cannot write to $VENV" "$(space)"
    mv -f "$LOG" "$VENV/setup.log" 2>/dev/null # gone where something clears temporary files; then a new one is begun
    LOG=$VENV/setup.log
    get_uv
    install
    started=$SECONDS
    if problem=$(import_check); then break; fi
    [ -n "$kept" ] || fail "the import check: ${problem:-Python died}"
    say "making $VENV again: the import check failed (${problem:-Python died})"
    kept=
    LOG=$(mktemp "${TMPDIR:-/tmp}/nereus-setup.XXXXXX")
    UV=$(command -v uv 2>/dev/null) && usable_uv "$UV" || UV=
  done
  say "import check passed ($((SECONDS - started)) s)"
  write_stamp "complete $(digest)"$'\t'"$REQUESTED" || fail "cannot write to $VENV" "$(space)"
  say "ready after $SECONDS s; log: $LOG"
}

while [ $# -gt 0 ]; do
  case $1 in
    --check) MODE=check ;;
    --reinstall) MODE=reinstall ;;
    --find-python) MODE=find-python ;;
    --quiet) QUIET=1 ;;
    --python) [ $# -gt 1 ] || { echo "setup: --python needs a path" >&2; exit 2; }; REQUESTED=$2; shift ;;
    --python=*) REQUESTED=${1#*=} ;;
    -h | --help) sed -n '2,/^set -u/{/^#/s/^# \{0,1\}//p;}' "${BASH_SOURCE[0]}"; exit 0 ;;
    *) echo "setup: unknown option $1 (see --help)" >&2; exit 2 ;;
  esac
  shift
done

case $MODE in
  check)
    if complete; then [ -n "$QUIET" ] || say "$VENV is complete"; exit 0; fi
    [ -n "$QUIET" ] || say "$VENV is not complete or not up to date: run make setup"
    exit 1
    ;;
  find-python)
    UV=$(command -v uv 2>/dev/null) && usable_uv "$UV" || UV=
    find_python
    echo "$FOUND"
    exit 0
    ;;
  setup)
    if complete; then [ -n "$QUIET" ] || say "$VENV is complete"; exit 0; fi
    ;;
esac
trap 'stop "stopped" 130' INT
trap 'stop "ended" 143' TERM
main
