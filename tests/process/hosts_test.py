"""Ranks of several hosts, each started with the variables that its host's launcher would give it."""
import signal
import subprocess
import time

import pytest

from training_runs import DS_TRAIN, GOLDEN, LIMIT, arguments, config, environment, free_port, losses, trained, write_tokens

pytestmark = pytest.mark.skipif(not DS_TRAIN.exists(), reason="ds_train is not built (it needs torch)")

CASE = GOLDEN / "train" / "stage2-fp32-w4"


def start(port, words, locals_=2, world=4, each=None, **extra):
    """`world` processes, `locals_` on each host; `each`: further variables of each rank."""
    started = []
    for rank in range(world):
        variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": rank % locals_, "LOCAL_WORLD_SIZE": locals_, "MASTER_ADDR": "127.0.0.1",
                     "MASTER_PORT": port, "GLOO_SOCKET_IFNAME": "lo", **extra, **(each[rank] if each else {})}
        started.append(subprocess.Popen([str(word) for word in (DS_TRAIN, *words)], env=environment(**{k: str(v) for k, v in variables.items()}),
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, stdin=subprocess.DEVNULL))
    return started


def finish(started):
    outputs = []
    try:
        for process in started:
            outputs.append(process.communicate(timeout=LIMIT)[1])
    finally:
        for process in started:
            process.kill()
    return outputs


def test_two_hosts_of_two_ranks_give_the_losses_of_one(tmp_path):
    one, two = tmp_path / "one.jsonl", tmp_path / "two.jsonl"
    words = arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json")
    trained(*words, one, ranks=4)
    started = start(free_port(), [*words, two])
    outputs = finish(started)
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert "4 ranks (shm+gloo)" in outputs[0]
    assert losses(two) == pytest.approx(losses(one), abs=1e-6)


def test_hosts_of_different_sizes_talk_through_gloo(tmp_path):
    words = arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json", tmp_path / "log.jsonl")
    started = start(free_port(), words, locals_=3)
    outputs = finish(started)
    assert [process.returncode for process in started] == [0] * 4, outputs
    assert "4 ranks (gloo)" in outputs[0]


def test_hosts_of_different_sizes_are_refused_when_shared_memory_was_asked_for(tmp_path):
    words = arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json", tmp_path / "log.jsonl")
    started = start(free_port(), words, locals_=3, DS_COMM_BACKEND="shm+gloo")
    outputs = finish(started)
    assert all(process.returncode not in (0, -signal.SIGKILL) for process in started)
    assert "backend shm+gloo: got rank 0: 3 ranks on its host, of 4" in outputs[0]


def test_a_rank_killed_on_one_host_ends_the_ranks_of_all(tmp_path):
    log = tmp_path / "log.jsonl"
    # More data than the run can use up before the kill.
    tokens = write_tokens(tmp_path / "tokens.safetensors", 8_000, world=4)
    started = start(free_port(), arguments(tokens, config(tmp_path / "ds_config.json", stage=2), "--log_json", log))
    until = time.monotonic() + LIMIT
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert time.monotonic() < until, "no steps"
        time.sleep(0.05)
    started[3].kill()
    killed = time.monotonic()
    for process in started[:3]:
        process.wait(timeout=LIMIT)
    assert time.monotonic() - killed < 20
    outputs = finish(started)
    assert all(process.returncode == 5 for process in started[:3]), outputs
    assert "E20" in outputs[0] and "rank" in outputs[0]
