"""The arithmetic of the micro rows, on made-up lines."""
import sys

import pytest
from project_root import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import compare  # noqa: E402
import measure  # noqa: E402
import micro  # noqa: E402

ROW = "optimizer + clip, 4096 tensors x 1024"


def line(system, ms, row=ROW, check=2.0, extra_mb=0):
    return {"row": row, "system": system, "ms": ms, "check": check, "extra_mb": extra_mb}


def test_medians_of_a_turn_give_its_ratio():
    turns = {"small_tensors": [[line("ours", [1, 2, 30]), line("torch", [8, 8, 8])], [line("torch", [6, 6, 6]), line("ours", [1, 1, 1])]]}
    row, = micro.table(turns)
    assert (row["measure"], row["peer"], row["ours_value"], row["peer_value"]) == (f"ms, {ROW}", "torch", 1.5, 7)
    assert row["ratio"] == (4, 5, 6) and row["of_limit"] is None


def test_the_limit_is_the_bytes_at_the_copy_rate_of_the_same_turn():
    copy = line("ours", [512 * micro.MIB / 28e6], micro.COPY, 0)  # 28 MB per ms
    row, = micro.table({"small_tensors": [[copy, line("ours", [2 * 4.194304]), line("torch", [9])]]})
    assert row["of_limit"] == pytest.approx(0.5)


def test_the_limit_takes_the_faster_of_copy_and_change():
    lines = [line("ours", [512 * micro.MIB / 14e6], micro.COPY, 0), line("ours", [512 * micro.MIB / 28e6], micro.CHANGE, 0)]
    assert micro.limit_ms(ROW, lines) == pytest.approx(4.194304)


def test_peak_memory_is_a_row_of_its_own():
    rows = micro.table({"loss": [[line("ours", [1], micro.LOSS, extra_mb=50), line("torch", [1], micro.LOSS, extra_mb=3000)]]})
    assert rows[1]["measure"].startswith("extra MB") and rows[1]["ratio"] == (60, 60, 60)


def test_a_system_that_does_not_run_is_named_in_the_output():
    turns = {"all_reduce": [[line("ours", [1]), {"row": "all-reduce", "system": "DeepSpeed shm", "error": "no compiler"}]]}
    assert micro.table(turns) == []
    assert "No figure: all-reduce, DeepSpeed shm: no compiler" in micro.markdown([], turns)


def test_sides_alternate_and_results_are_compared_first(monkeypatch, capsys):
    order = []

    def run(side, row):
        order.append(side)
        return [line(side, [1.0], check=2.0 if side == "ours" else checks.pop(0))]

    monkeypatch.setattr(micro, "run", run)
    checks = [2.0, 2.0]
    micro.measure_row("small_tensors", ["ours", "peers"], 2)
    assert order == ["ours", "peers", "peers", "ours"]
    checks = [2.001]
    with pytest.raises(measure.RunFailed, match="results of peers and ours differ"):
        micro.measure_row("small_tensors", ["ours", "peers"], 1)


def test_lines_of_results_are_found_among_other_output():
    assert micro.parse('[rank 0] MICRO {"row": "a"}\nsomething else\n') == [{"row": "a"}]


def test_rows_of_both_kinds_can_be_chosen():
    assert compare.choose_rows("tiny,loss") == ["tiny", "loss"]
