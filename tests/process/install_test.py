"""`make install`, then a project outside the tree that finds the package, builds and trains."""
import os
import pathlib
import re
import shutil
import subprocess

import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]


def run(*command, **options):
    result = subprocess.run([str(part) for part in command], capture_output=True, text=True, timeout=600, stdin=subprocess.DEVNULL, **options)
    assert result.returncode == 0, f"{command} ended with {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def prefix(tmp_path_factory):
    assert (ROOT / "build" / "lib" / "libdeepspeed.so").exists(), "build first: make build"
    prefix = tmp_path_factory.mktemp("installed") / "prefix"
    run("cmake", "--install", ROOT / "build", "--prefix", prefix)
    return prefix


def test_installed_tools_run(prefix):
    assert (ROOT / "version.txt").read_text().strip() in run(prefix / "bin" / "deepspeed", "--version")
    assert "--deepspeed_config" in run(prefix / "bin" / "ds_train", "--help")


def test_external_project_builds_and_trains(prefix, tmp_path):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "examples" / "external", source)  # nothing of the tree is near
    run("cmake", "-G", "Ninja", "-S", source, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={prefix}", "-DCMAKE_BUILD_TYPE=Release")
    run("cmake", "--build", tmp_path / "build", env=dict(os.environ, CCACHE_BASEDIR=str(tmp_path)))
    output = run(prefix / "bin" / "deepspeed", "--num_ranks", 2, tmp_path / "build" / "tiny_training",
                 env=dict(os.environ, OMP_NUM_THREADS="1"))
    losses = [float(text) for text in re.findall(r"loss (\S+)", output)]
    assert len(losses) == 3, output
    assert losses[-1] < losses[0] / 4, output


def test_external_example_stays_short():
    assert len((ROOT / "examples" / "external" / "main.cpp").read_text().splitlines()) < 40


def test_pkg_config_names_the_installed_prefix(prefix):
    if shutil.which("pkg-config") is None:
        pytest.skip("pkg-config is not installed")
    folder, = prefix.glob("lib*/**/pkgconfig")
    env = dict(os.environ, PKG_CONFIG_PATH=str(folder))
    assert run("pkg-config", "--modversion", "deepspeed", env=env).strip() == (ROOT / "version.txt").read_text().strip()
    include = re.search(r"-I(\S+)", run("pkg-config", "--cflags", "deepspeed", env=env)).group(1)
    assert (pathlib.Path(include) / "deepspeed" / "engine.h").is_file()
