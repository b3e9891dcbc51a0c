#!/usr/bin/env bash
# Installs the peers (DeepSpeed, transformers, torch) in .venv-peers and measures them beside our build. Arguments go to benchmarks/compare.py.
. "$(dirname "$0")/lib.sh"
STAGE=bench
export DS_BUILD_OPS=0  # no peer kernels are compiled at installation
ensure_venv .venv-peers 'import importlib.util as u, sys
sys.exit(any(u.find_spec(name) is None for name in ("torch", "deepspeed", "transformers")))' requirements-peers.txt
exec .venv/bin/python benchmarks/compare.py "$@"
