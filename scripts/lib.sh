# Shared by the scripts: messages, Python choice, virtual environments, number of compile jobs. Source it; it changes to the repository root.
# Exit codes as everywhere in this project: 1 failure, 2 usage, 4 environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
ROOT=$PWD

say() { printf '[%s] %s\n' "${STAGE:-setup}" "$*" >&2; }
die() {  # die CODE MESSAGE
  local code=$1
  shift
  printf '[%s] error: %s\n' "${STAGE:-setup}" "$*" >&2
  exit "$code"
}

# The first Python that really runs and can make virtual environments, 3.12 preferred. A command on the PATH may be a version manager's
# shim that fails, so each candidate is tried. PYTHON=... overrides.
find_python() {
  local versions=${PYENV_ROOT:-${HOME:-}/.pyenv}/versions candidate
  for candidate in ${PYTHON:+"$PYTHON"} python3.12 "$versions"/3.12*/bin/python3.12 python3.13 "$versions"/3.13*/bin/python3.13 \
      python3.11 "$versions"/3.11*/bin/python3.11 python3 /usr/bin/python3; do
    if "$candidate" -c 'import sys, venv, ensurepip, ctypes, ssl
sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' >/dev/null 2>&1; then
      command -v "$candidate"
      return 0
    fi
  done
  die 4 "no usable Python: need 3.11, 3.12 or 3.13 with venv, ssl and ctypes (on Debian: apt-get install python3 python3-venv)." \
      "Set PYTHON=/path/to/python to name one"
}

# ensure_venv DIR PROBE REQUIREMENTS...: a virtual environment with exactly those requirements. A stamp of their hash makes the second call
# instant; an environment that does not run, or where the Python statement PROBE fails, is made again or repaired.
ensure_venv() {
  local dir=$1 probe=$2 python files=() file stamp want
  shift 2
  for file in "$@"; do files+=(-r "$file"); done
  stamp=$dir/.requirements-stamp
  want=$(cat "$@" | sha256sum | cut -d' ' -f1)
  if [ -x "$dir/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$want" ] && "$dir/bin/python" -c "$probe" >/dev/null 2>&1; then
    say "$dir is up to date"
    return 0
  fi
  if [ -e "$dir" ] && ! "$dir/bin/python" -m pip --version >/dev/null 2>&1; then
    say "$dir does not run: making it again"
    rm -rf "$dir"
  fi
  if [ ! -e "$dir" ]; then
    local free
    free=$(df -Pk . | awk 'NR == 2 {print int($4 / 1048576)}')
    [ "$free" -ge 9 ] || die 4 "free disk space: got $free GB, need 9 GB for $dir"
    python=$(find_python)
    say "making $dir with $("$python" --version) ($python)"
    "$python" -m venv "$dir" || die 4 "could not make $dir with $python"
  fi
  rm -f "$stamp"
  say "installing $* into $dir (the first time this fetches about 3 GB and takes a few minutes)"
  "$dir/bin/python" -m pip install --disable-pip-version-check --no-input "${files[@]}" | sed -u '/^Requirement already satisfied/d' \
    || die 4 "pip could not install $*: see its message above; run the same command again to continue"
  "$dir/bin/python" -c "$probe" >/dev/null 2>&1 || {
    # Packages whose files are damaged but whose metadata is there are not mended by a plain install.
    say "$dir is incomplete: installing every package again"
    "$dir/bin/python" -m pip install --disable-pip-version-check --no-input --force-reinstall "${files[@]}" \
      || die 4 "pip could not reinstall $*"
    "$dir/bin/python" -c "$probe" || die 4 "$dir does not work after a reinstall: see the message above"
  }
  echo "$want" >"$stamp"
}

# Compile jobs that fit this machine: one per core, and 2.5 GB of free memory each.
compile_jobs() {
  local by_memory cores
  cores=$(nproc)
  by_memory=$(awk '/MemAvailable/ {print int($2 / 2621440)}' /proc/meminfo)
  [ "$by_memory" -ge 1 ] || by_memory=1
  echo $((by_memory < cores ? by_memory : cores))
}
