"""ds_train started by torchrun, without Python in the ranks."""

import json
import subprocess
import sys

import pytest

from training_runs import DS_TRAIN, GOLDEN, LIMIT, arguments, config, environment, free_port, losses, trained, write_tokens

pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not DS_TRAIN.exists(), reason="ds_train is not built (it needs torch)")

CASE = GOLDEN / "train" / "stage3-fp32-w2"


def torchrun(*words, rendezvous):
    command = [sys.executable, "-m", "torch.distributed.run", *rendezvous, "--no-python", "--nproc-per-node", "2", DS_TRAIN, *words]
    return subprocess.run(list(map(str, command)), env=environment(), capture_output=True, text=True, timeout=2 * LIMIT, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("standalone", [True, False])
def test_torchrun_gives_the_losses_of_the_launcher(tmp_path, standalone):
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    words = arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json")
    trained(*words, ours)
    result = torchrun(*words, theirs, rendezvous=["--standalone"] if standalone else ["--master-port", free_port()])
    assert result.returncode == 0, result.stderr
    assert losses(theirs) == losses(ours)
    assert len(losses(ours)) == len(json.loads((CASE / "expected.json").read_text())["steps"])


def test_torchrun_shows_the_message_of_the_rank_that_failed(tmp_path):
    data = write_tokens(tmp_path / "tokens.safetensors", 2)
    result = torchrun(*arguments(data, config(tmp_path / "ds_config.json"), "--load", tmp_path / "nothing"), rendezvous=["--standalone"])
    assert result.returncode != 0
    summary = result.stderr[result.stderr.rindex("FAILED"):]
    assert "exitcode  : 1" in summary
    assert "E3000" in summary and "nothing/latest" in summary
