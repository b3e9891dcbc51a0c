"""The benchmark's arithmetic and its way of running a job, on made-up systems."""
import argparse
import json
import sys

import pytest
from project_root import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import compare  # noqa: E402
import measure  # noqa: E402


def one(step_ms=1.0, tokens_per_s=1.0, peak_mb=1.0, job_mb=0.0, start_s=1.0, others=0.0):
    return {"step_ms": step_ms, "tokens_per_s": tokens_per_s, "peak_mb": peak_mb, "job_mb": job_mb, "start_s": start_s, "others": others}


def test_ratios_are_taken_within_a_turn_and_say_how_much_better_ours_is():
    turns = {"tiny": [{"ours-3": one(step_ms=2), "deepspeed-3": one(step_ms=10)}, {"ours-3": one(step_ms=4), "deepspeed-3": one(step_ms=12)},
                      {"ours-3": one(step_ms=2), "deepspeed-3": one(step_ms=8)}]}
    row = compare.table(turns)[0]
    assert (row["ours"], row["peer"], row["ours_value"], row["peer_value"]) == ("ours-3", "deepspeed-3", 2, 10)
    assert row["ratio"] == (3, 4, 5)


def test_throughput_is_compared_with_the_best_peer_of_each_turn():
    turns = {"throughput": [{"ours-0": one(tokens_per_s=200), "ddp": one(tokens_per_s=100), "fsdp2": one(tokens_per_s=160)},
                            {"ours-0": one(tokens_per_s=200), "ddp": one(tokens_per_s=250), "fsdp2": one(tokens_per_s=160)}]}
    row, = compare.table(turns)
    assert row["ratio"] == (0.8, pytest.approx(1.025), 1.25)


def test_rows_without_a_counterpart_are_left_out():
    assert compare.table({"tiny": [{"ours-3": one()}], "small": [{"ddp": one()}]}) == []


def test_figures_skip_the_warm_up():
    _, micro_batch, seq, steps, warm = measure.SHAPES["throughput"]
    found = compare.figures({"seconds": [9.0] * warm + [0.5] * (steps - warm), "peak_mb": 7, "job_mb": 0, "start_s": 3, "others": 0.0}, "throughput")
    assert found == one(step_ms=500, tokens_per_s=2 * micro_batch * seq / 0.5, peak_mb=7, start_s=3)


def test_turns_beside_other_work_are_named():
    text = compare.markdown([], {"tiny": [{"ddp": one()}, {"ddp": one(others=0.5)}]}, "about")
    assert "Other work took part of the machine, in cores: tiny ddp (turn 2: 0.50)." in text
    assert "quiet" in compare.markdown([], {"tiny": [{"ddp": one()}]}, "about")


def test_system_names():
    assert compare.choose("ddp,ours") == ["ddp", *measure.OURS]
    with pytest.raises(argparse.ArgumentTypeError, match="got 'dpp', allowed"):
        compare.choose("dpp")


def test_systems_whose_losses_differ_fail(monkeypatch):
    steps = measure.SHAPES["tiny"][3]

    def run(system, shape):
        return {"seconds": [1.0] * steps, "losses": [1.0 if system == "ddp" else 1.01] * steps, "peak_mb": 1, "job_mb": 0, "start_s": 1, "others": 0.0}

    monkeypatch.setattr(measure, "run", run)
    with pytest.raises(measure.RunFailed, match="losses of ours-3 and ddp differ by 0.01"):
        compare.measure_row("tiny", ["ddp", "ours-3"], 1)


def job(monkeypatch, body):
    """Make measure.run start a Python program that gets the path of the first-step file."""
    monkeypatch.setattr(measure, "inputs", lambda shape: None)
    monkeypatch.setattr(measure, "command", lambda system, shape, scratch, first: [sys.executable, "-c", body, str(first)])


def test_run_measures_start_and_memory_of_grandchildren(monkeypatch):
    lines = [{"loss": 1.0, "step_s": 0.1}] * measure.SHAPES["warm"][3]
    text = "".join(json.dumps(line) + "\n" for line in lines)
    body = ("import subprocess, sys\n"
            "subprocess.run([sys.executable, '-c', 'x = bytearray(200 << 20)'])\n"
            f"open(sys.argv[1], 'w').write({text!r})")
    job(monkeypatch, body)
    result = measure.run("ours-3", "warm")
    assert result["peak_mb"] > 200 and result["start_s"] > 0
    assert result["losses"] == [1.0] * len(lines)


def test_run_reports_what_a_failing_job_said(monkeypatch):
    job(monkeypatch, "import sys; print('no such model'); sys.exit(3)")
    with pytest.raises(measure.RunFailed, match=r"(?s)ended with 3.*no such model"):
        measure.run("ours-3", "warm")
