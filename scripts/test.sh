#!/usr/bin/env bash
# test.sh [tsan]: set-up, build and every test, stage by stage. Stops at the first stage that fails; ends with a table of what ran.
. "$(dirname "$0")/lib.sh"
names=() times=()
started=$SECONDS

summary() {
  local i
  printf '\n== summary\n'
  for i in "${!names[@]}"; do printf '  %-34s %s\n' "${names[$i]}" "${times[$i]}"; done
}

stage() {  # stage NAME COMMAND...
  local name=$1 begin=$SECONDS status=0
  shift
  STAGE=$name
  printf '\n== %s\n' "$name"
  "$@" || status=$?
  names+=("$name")
  if [ "$status" -ne 0 ]; then
    times+=("FAILED (exit $status) after $((SECONDS - begin)) s")
    summary
    printf 'tests failed in stage "%s"\n' "$name"
    exit "$status"
  fi
  times+=("ok, $((SECONDS - begin)) s")
}

run_ctest() {  # run_ctest BUILD_FOLDER
  ctest --test-dir "$1" --parallel 2 --output-on-failure --no-tests=error --timeout 900
}

run_sanitized() {
  scripts/build.sh asan || return
  ASAN_OPTIONS=detect_leaks=1:strict_string_checks=1 UBSAN_OPTIONS=print_stacktrace=1 run_ctest build-asan
}

# What threads and ranks of one host share.
run_tsan() {
  scripts/build.sh tsan test_shm test_base || return
  TSAN_OPTIONS=halt_on_error=1 ctest --test-dir build-tsan -R '^(shm|base)$' --output-on-failure --no-tests=error --timeout 900
}

run_pytest() {
  local folders=() folder
  for folder in tests/scripts tests/process tests/python; do
    if compgen -G "$folder/*_test.py" >/dev/null; then folders+=("$folder"); fi
  done
  .venv/bin/python -m pytest -q --durations=5 "${folders[@]}"
}

if [ "${1:-}" = tsan ]; then
  stage "thread sanitizer" run_tsan
  summary
  exit 0
fi
[ $# -eq 0 ] || die 2 "argument: got '$1', allowed tsan or none"

stage "set-up" scripts/setup.sh
stage "build" scripts/build.sh release
stage "unit tests" run_ctest build
stage "address and undefined sanitizers" run_sanitized
stage "thread sanitizer" run_tsan
stage "scripts and processes" run_pytest
if [ -x build/bin/conformance ] && [ -d tests/golden ]; then
  stage "conformance" build/bin/conformance tests/golden
fi
summary
printf 'all stages passed in %s s\n' "$((SECONDS - started))"
