"""ds_report as a user or a script calls it. The binary is $DEEPSPEED_BIN_DIR/ds_report, else build/bin/ds_report of this repository."""

import json
import os
import subprocess
from pathlib import Path

import pytest

BIN_DIR = Path(os.environ.get("DEEPSPEED_BIN_DIR", Path(__file__).resolve().parents[2] / "build" / "bin"))
REPORT = BIN_DIR / "ds_report"

pytestmark = pytest.mark.skipif(not REPORT.exists(), reason="ds_report is not built (it needs torch)")


def run(*arguments, **variables):
    environment = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    environment.update(variables)
    return subprocess.run([str(REPORT), *arguments], env=environment, capture_output=True, text=True, timeout=60)


def test_json_is_one_object_with_every_section():
    result = run("--json")
    assert result.returncode == 0
    report = json.loads(result.stdout)
    assert list(report) == ["versions", "machine", "accelerator", "communication", "operators", "errors", "warnings"]
    assert report["versions"]["torch_built_with"] == report["versions"]["torch_running"]
    assert report["machine"]["cores_allowed"] == len(os.sched_getaffinity(0))
    assert report["machine"]["memory_bytes"] > 0
    assert report["communication"]["gloo"] == "yes"
    assert report["communication"]["launched_by"] == "none"
    assert report["errors"] == []


def test_table_has_no_colour_where_nobody_looks():
    result = run(TERM="xterm")
    assert result.returncode == 0
    assert "\033" not in result.stdout
    for name in ("versions", "deepspeed", "avx2", "shared_memory", "gloo", "operators"):
        assert name in result.stdout


def test_sections_can_be_left_out():
    assert "operators" not in run("--hide_operator_status").stdout
    assert "errors" not in json.loads(run("--json", "--hide_errors_and_warnings").stdout)


def test_a_rank_shows_itself():
    report = json.loads(run("--json", RANK="1", WORLD_SIZE="2").stdout)
    assert report["communication"]["rank"] == "1 of 2"


def test_a_contradictory_environment_is_told_and_ends_with_4():
    result = run(RANK="1")
    assert result.returncode == 4
    assert "WORLD_SIZE" in result.stdout and "versions" in result.stdout
    assert run("--hide_errors_and_warnings", RANK="1").returncode == 4


def test_a_broken_toolkit_does_not_matter():
    assert run(CUDA_HOME="/nope", PATH="/nope").returncode == 0


def test_usage():
    assert run("--help").returncode == 0
    assert run("--no_such_option").returncode == 2
