#!/usr/bin/env bash
# Installs what the project needs on Debian 12: system packages (as root or with sudo) and .venv with the pinned wheels. Idempotent: with
# everything in place it only looks and says so.
. "$(dirname "$0")/lib.sh"
STAGE=setup

# Compiler and build tools; checksums and the index of checkpoints; MPI; Gloo's headers (the torch wheel has none); GoogleTest, JSON, command line; Python for .venv.
packages=(build-essential g++ cmake ninja-build ccache git libgloo-dev libgtest-dev libgmock-dev nlohmann-json3-dev libcli11-dev
  zlib1g-dev pkg-config libisal-dev libxxhash-dev libsqlite3-dev libopenmpi-dev openmpi-bin python3 python3-venv)

missing_packages() {
  local package
  for package in "${packages[@]}"; do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] || printf '%s ' "$package"
  done
}

install_packages() {
  command -v dpkg-query >/dev/null || die 4 "this set-up knows Debian 12; elsewhere install the counterparts of: ${packages[*]}"
  local missing as_root=()
  missing=$(missing_packages)
  if [ -z "$missing" ]; then
    say "system packages are in place"
    return 0
  fi
  if [ "$(id -u)" -ne 0 ]; then
    if command -v sudo >/dev/null && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
      as_root=(sudo)
    else
      die 4 "system packages are missing and this user cannot install them. Run as root:
    apt-get update && apt-get install -y --no-install-recommends $missing"
    fi
  fi
  say "installing system packages: $missing"
  "${as_root[@]}" apt-get -o DPkg::Lock::Timeout=600 update || say "apt-get update failed; trying with the package lists that are there"
  # shellcheck disable=SC2086
  "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get -o DPkg::Lock::Timeout=600 install -y --no-install-recommends $missing \
    || die 4 "apt-get could not install: $missing"
  missing=$(missing_packages)
  [ -z "$missing" ] || die 4 "still missing after apt-get: $missing"
}

install_packages
# The probe looks at files instead of importing torch, which would take seconds.
ensure_venv .venv 'import importlib.util as u, os, sys
root = u.find_spec("torch").submodule_search_locations[0]
missing = [n for n in ("lib/libtorch_cpu.so", "lib/libc10.so", "include/ATen/ATen.h") if not os.path.exists(os.path.join(root, n))]
missing += [n for n in ("numpy", "transformers", "tokenizers", "safetensors", "gguf", "pytest") if u.find_spec(n) is None]
sys.exit("missing: " + ", ".join(missing) if missing else 0)' requirements.txt requirements-dev.txt
