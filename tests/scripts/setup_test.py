"""The set-up on machines of other kinds, imitated by programs in front of the PATH."""
import os
import shutil
import subprocess
import sys

import pytest
from project_root import ROOT


@pytest.fixture
def tree(tmp_path):
    """A copy of the set-up scripts, with a folder of imitations that comes first on the PATH."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    for name in ("requirements.txt", "requirements-dev.txt"):
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / "fake").mkdir()
    return tmp_path


def imitate(tree, name, body):
    path = tree / "fake" / name
    path.write_text(f"#!/bin/bash\n{body}\n")
    path.chmod(0o755)


def run(tree, *command, **variables):
    env = dict(os.environ, PATH=f"{tree / 'fake'}:{os.environ['PATH']}", HOME=str(tree), **variables)
    env.pop("PYENV_ROOT", None)
    env.pop("PYTHON", None)
    return subprocess.run(command, cwd=tree, env=env, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=60)


def test_without_rights_the_exact_command_is_printed(tree):
    imitate(tree, "dpkg-query", 'case "$*" in *ninja-build*|*libgloo-dev*) exit 1;; esac; printf installed')
    imitate(tree, "id", "echo 1000")
    imitate(tree, "sudo", "exit 1")
    result = run(tree, "scripts/setup.sh")
    assert result.returncode == 4
    assert "apt-get update && apt-get install -y --no-install-recommends ninja-build libgloo-dev" in result.stderr


def test_as_root_only_missing_packages_are_installed_and_only_once(tree):
    imitate(tree, "dpkg-query", f'case "$*" in *ccache*) [ -e {tree}/done ] || exit 1;; esac; printf installed')
    imitate(tree, "id", "echo 0")
    imitate(tree, "apt-get", f'echo "$*" >>{tree}/log; case "$*" in *install*) touch {tree}/done;; esac')
    imitate(tree, "sha256sum", "cat >/dev/null; echo stamp -")  # so that the environment counts as made
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").symlink_to("/bin/true")
    (tree / ".venv" / ".requirements-stamp").write_text("stamp\n")
    for _ in range(2):
        result = run(tree, "scripts/setup.sh")
        assert result.returncode == 0, result.stderr
    log = (tree / "log").read_text().splitlines()
    assert [line.split()[-1] for line in log] == ["update", "ccache"]


def test_a_python_that_does_not_run_is_passed_over(tree):
    imitate(tree, "python3.12", "echo 'pyenv: python3.12: command not found' >&2; exit 127")
    imitate(tree, "python3.13", f'exec {sys.executable} "$@"')
    result = run(tree, "bash", "-c", ". scripts/lib.sh; find_python")
    assert result.stdout.strip() == str(tree / "fake" / "python3.13")


def test_no_usable_python_is_an_environment_error(tree):
    for name in ("python3.12", "python3.13", "python3.11", "python3"):
        imitate(tree, name, "exit 127")
    # Without the last resort, Debian's own.
    script = (tree / "scripts" / "lib.sh").read_text().replace("/usr/bin/python3", "/nowhere/python3")
    (tree / "scripts" / "lib.sh").write_text(script)
    result = run(tree, "bash", "-c", ". scripts/lib.sh; find_python")
    assert result.returncode == 4 and "no usable Python" in result.stderr and "apt-get install python3 python3-venv" in result.stderr


def test_unknown_build_flavour_is_a_usage_error(tree):
    result = run(tree, "scripts/build.sh", "fast")
    assert result.returncode == 2 and "got 'fast', allowed release, asan, tsan" in result.stderr


def test_damaged_environment_is_made_again(tree):
    """A folder whose Python does not start must not stop the set-up."""
    (tree / ".venv" / "bin").mkdir(parents=True)
    (tree / ".venv" / "bin" / "python").write_text("#!/bin/false\n")
    (tree / "empty.txt").write_text("")
    body = ". scripts/lib.sh; ensure_venv .venv 'import json' empty.txt && .venv/bin/python -c 'print(6 * 7)'"
    result = run(tree, "bash", "-c", f"export PYTHON={sys.executable}; {body}")
    assert result.returncode == 0, result.stderr
    assert "making it again" in result.stderr and result.stdout.endswith("42\n")
    assert "up to date" in run(tree, "bash", "-c", body).stderr
