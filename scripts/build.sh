#!/usr/bin/env bash
# build.sh [release|asan|tsan [TARGET...]]: configures and builds in build/, build-asan/ or build-tsan/; JOBS=N sets the number of compile jobs. The
# sanitizer builds hold the libraries that need no torch and their tests.
. "$(dirname "$0")/lib.sh"
STAGE=build
flavour=${1:-release}
[ $# -eq 0 ] || shift

case $flavour in
  release) dir=build options=(-DCMAKE_BUILD_TYPE=Release -DPython3_EXECUTABLE="$ROOT/.venv/bin/python") ;;
  asan) dir=build-asan options=(-DDEEPSPEED_SANITIZE=address,undefined) ;;
  tsan) dir=build-tsan options=(-DDEEPSPEED_SANITIZE=thread) ;;
  *) die 2 "build flavour: got '$flavour', allowed release, asan, tsan" ;;
esac
if [ "$flavour" != release ]; then
  options+=(-DDEEPSPEED_TORCH=OFF -DCMAKE_BUILD_TYPE=Sanitize "-DCMAKE_CXX_FLAGS_SANITIZE=-O1 -fno-sanitize-recover=all")
fi

# A build folder that was made elsewhere, or with another generator, cannot be used.
if [ -f "$dir/CMakeCache.txt" ] && ! { grep -qx "CMAKE_HOME_DIRECTORY:INTERNAL=$ROOT" "$dir/CMakeCache.txt" &&
    grep -qx 'CMAKE_GENERATOR:INTERNAL=Ninja' "$dir/CMakeCache.txt"; }; then
  say "$dir belongs to another tree: making it again"
  rm -rf "$dir"
fi
mkdir -p "$dir"
say "configuring $dir"
cmake -S . -B "$dir" -G Ninja "${options[@]}" >"$dir/configure.log" 2>&1 \
  || { cat "$dir/configure.log" >&2; die 1 "cmake failed: see above (also in $dir/configure.log)"; }
grep -E '^-- LibTorch' "$dir/configure.log" >&2 || true

# Paths relative to the tree let ccache serve a fresh clone in another folder.
export CCACHE_BASEDIR=$ROOT CCACHE_NOHASHDIR=1
jobs=${JOBS:-$(compile_jobs)}
say "building $dir with $jobs jobs"
NINJA_STATUS="[build %f/%t, %es] " ninja -C "$dir" -j "$jobs" "$@" || die 1 "compilation failed in $dir: see the first error above"
