#!/usr/bin/env bash
# format.sh --write|--check: the pinned clang-format over every C++ file of the tree.
. "$(dirname "$0")/lib.sh"
STAGE=format
case ${1:-} in
  --write) mode=(-i) ;;
  --check) mode=(--dry-run -Werror) ;;
  *) die 2 "mode: got '${1:-}', allowed --write, --check" ;;
esac
git ls-files -z --cached --others --exclude-standard '*.h' '*.cpp' \
  | xargs -0 --no-run-if-empty "$ROOT/.venv/bin/clang-format" "${mode[@]}" || die 1 "files are not formatted: run 'make format'"
