"""What the benchmark knows of other work on the machine."""
import subprocess
import sys

from project_root import ROOT

sys.path.insert(0, str(ROOT / "benchmarks"))
import load  # noqa: E402

SPIN = "import time\nwhile time.process_time() < 0.5: pass"


def test_processor_time_of_children_is_not_that_of_others():
    with load.Load() as measured:
        subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert measured.cpu_s > 0.4


def test_others_are_seen(monkeypatch):
    readings = iter([(10.0, 1.0), (14.0, 2.0)])
    monkeypatch.setattr(load, "machine_seconds", lambda: next(readings))
    monkeypatch.setattr(load, "own_seconds", lambda: 0.0)
    clock = iter([100.0, 110.0])
    monkeypatch.setattr(load.time, "monotonic", lambda: next(clock))
    with load.Load() as measured:
        pass
    assert measured.others == 0.5
