"""ds_train started by Open MPI's mpirun, where it is installed (Debian: openmpi-bin): its variables, and the losses of our own launcher."""
import shutil
import subprocess

import pytest

from training_runs import DS_TRAIN, GOLDEN, LIMIT, arguments, environment, losses, trained

pytestmark = [pytest.mark.skipif(not DS_TRAIN.exists(), reason="ds_train is not built (it needs torch)"),
              pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")]

CASE = GOLDEN / "train" / "stage3-fp32-w2"


def test_mpirun_gives_the_losses_of_the_launcher(tmp_path):
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    words = arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json")
    trained(*words, ours)
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "2", DS_TRAIN, *words, theirs]
    result = subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    assert losses(theirs) == losses(ours)
