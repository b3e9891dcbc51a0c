"""The back end on the system's MPI, where the library was built with it: the losses of shared memory."""
import shutil
import subprocess

import pytest

from training_runs import BIN_DIR, DS_TRAIN, GOLDEN, LIMIT, arguments, environment, free_port, losses, train, trained

PLUGIN = BIN_DIR.parent / "lib" / "libdeepspeed_mpi.so"
pytestmark = [pytest.mark.skipif(not PLUGIN.exists(), reason="built without MPI"),
              pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")]


def mpirun(ranks, *words, backend="mpi", **extra):
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", ranks, DS_TRAIN, *words]
    return subprocess.run(list(map(str, command)), env=environment(DS_COMM_BACKEND=backend, **extra), capture_output=True, text=True, timeout=LIMIT,
                          stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("case", ["stage3-fp32-w2", "stage2-bf16-w2", "stage1-fp32-w4"])
def test_mpi_gives_the_losses_of_shared_memory(tmp_path, case):
    folder, ranks = GOLDEN / "train" / case, int(case[-1])
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    words = arguments(folder / "tokens.safetensors", folder / "ds_config.json", "--log_json")
    trained(*words, ours, ranks=ranks)
    result = mpirun(ranks, *words, theirs)
    assert result.returncode == 0, result.stderr
    assert "(mpi)" in result.stderr
    assert losses(theirs) == losses(ours)


def test_shared_memory_inside_hosts_and_mpi_between(tmp_path):
    """Four ranks that MPI started on this machine, told that they are two hosts of two."""
    folder = GOLDEN / "train" / "stage2-fp32-w4"
    ours, theirs = tmp_path / "ours.jsonl", tmp_path / "theirs.jsonl"
    words = arguments(folder / "tokens.safetensors", folder / "ds_config.json", "--log_json")
    trained(*words, ours, ranks=4)
    told = ("export RANK=$OMPI_COMM_WORLD_RANK WORLD_SIZE=4 LOCAL_WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT=$PORT "
            "LOCAL_RANK=$((OMPI_COMM_WORLD_RANK % 2)); exec \"$@\"")
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", 4, "sh", "-c", told, "sh", DS_TRAIN, *words, theirs]
    result = subprocess.run(list(map(str, command)), env=environment(DS_COMM_BACKEND="shm+mpi", PORT=str(free_port())), capture_output=True, text=True,
                            timeout=LIMIT, stdin=subprocess.DEVNULL)
    assert result.returncode == 0, result.stderr
    assert "(shm+mpi)" in result.stderr
    assert losses(theirs) == pytest.approx(losses(ours), abs=1e-6)


def test_ranks_that_mpi_did_not_start_are_told_so(tmp_path):
    folder = GOLDEN / "train" / "stage3-fp32-w2"
    words = arguments(folder / "tokens.safetensors", folder / "ds_config.json", "--log_json", tmp_path / "log.jsonl")
    result = train(*words, DS_COMM_BACKEND="mpi")
    assert result.returncode != 0
    assert "start the ranks with mpirun" in result.stderr
