"""Runs of ds_train for the tests beside this file: small data, small configurations, and what a run left behind.

The binaries are those of $DEEPSPEED_BIN_DIR, else of build/bin of this repository.
"""

import json
import os
import random
import signal
import socket
import struct
import subprocess
import sys
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BIN_DIR = Path(os.environ.get("DEEPSPEED_BIN_DIR", ROOT / "build" / "bin"))
DEEPSPEED = BIN_DIR / "deepspeed"
DS_TRAIN = BIN_DIR / "ds_train"
DS_CHECKPOINT = BIN_DIR / "ds_checkpoint"
GOLDEN = ROOT / "tests" / "golden"
MODEL = GOLDEN / "models" / "micro-llama"  # 31 thousand parameters, vocabulary 128
VOCABULARY = 128
LIMIT = 120  # seconds after which a test is wrong rather than slow

MARKER = "DEEPSPEED_TEST_RUN"
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES",
                  "DEEPSPEED_TIMEOUT")


def environment(**extra):
    """The caller's environment without a job's variables, on the CPU with one thread a rank: the figures then are the same on every machine."""
    variables = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    variables.update(PYTHON=sys.executable, DEEPSPEED_PYTHON=sys.executable, OMP_NUM_THREADS="1", CUDA_VISIBLE_DEVICES="")
    variables.update(extra)
    return variables


def arguments(data, config, *more, model=MODEL):
    return ["--model", model, "--data", data, "--deepspeed_config", config, "--device", "cpu", *more]


def train(*words, ranks=2, **extra):
    """ds_train under the launcher (ranks=0: without it), to its end."""
    command = [DS_TRAIN, *words] if ranks == 0 else [DEEPSPEED, "-q", "--num_ranks", ranks, DS_TRAIN, *words]
    return subprocess.run(list(map(str, command)), env=environment(**extra), capture_output=True, text=True, timeout=LIMIT, stdin=subprocess.DEVNULL)


def trained(*words, ranks=2, **extra):
    result = train(*words, ranks=ranks, **extra)
    assert result.returncode == 0, result.stderr
    return result


class Run:
    """ds_train under the launcher in the background. Everything it starts carries a mark in its environment and is ended with the `with` block."""

    def __init__(self, *words, ranks=2):
        self.mark = uuid.uuid4().hex
        command = [DEEPSPEED, "-q", "--num_ranks", ranks, DS_TRAIN, *words]
        self.launcher = subprocess.Popen(list(map(str, command)), env=environment(**{MARKER: self.mark}), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                         text=True, stdin=subprocess.DEVNULL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for pid in self.processes():
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
        self.launcher.communicate()

    def processes(self):
        """{pid: environment} of all processes of this run that are not zombies."""
        wanted = f"{MARKER}={self.mark}".encode()
        found = {}
        for folder in Path("/proc").iterdir():
            if not folder.name.isdigit():
                continue
            try:
                variables = (folder / "environ").read_bytes().split(b"\0")
                state = (folder / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if wanted in variables and state != "Z":
                found[int(folder.name)] = dict(item.split(b"=", 1) for item in variables if b"=" in item)
        return found

    def rank_pid(self, rank):
        """Process id of a rank: the one that has become ds_train (the keeper above it is still the launcher's program)."""
        for pid, variables in self.processes().items():
            try:
                program = Path(f"/proc/{pid}/exe").readlink().name
            except OSError:
                continue
            if program == DS_TRAIN.name and variables.get(b"RANK") == str(rank).encode():
                return pid
        return None

    def end(self):
        """(exit status, stderr) of the launcher."""
        _, errors = self.launcher.communicate(timeout=LIMIT)
        return self.launcher.returncode, errors


def wait_until(condition, what, pause=0.005):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(pause)
    raise AssertionError(f"did not happen: {what}")


def config(path, stage=3, **changes):
    """Writes a ds_config.json. A change of None takes a key out, zero={...} adds to zero_optimization."""
    zero = {"stage": stage, "stage3_param_persistence_threshold": 100, **changes.pop("zero", {})}
    values = {
        "train_micro_batch_size_per_gpu": 2,
        "steps_per_print": 1000,
        "gradient_clipping": 1.0,
        "optimizer": {"type": "AdamW", "params": {"lr": 3e-3, "betas": [0.9, 0.95], "weight_decay": 0.1}},
        "scheduler": {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 3, "total_num_steps": 100, "warmup_max_lr": 3e-3}},
        "zero_optimization": zero,
    }
    values.update(changes)
    path.write_text(json.dumps({key: value for key, value in values.items() if value is not None}))
    return path


def write_tokens(path, micro_steps, world=2, micro_batch=2, seq=16, seed=7, vocabulary=VOCABULARY):
    """A safetensors file with `tokens` int64 [micro steps, ranks, micro batch, seq]."""
    source = random.Random(seed)
    shape = [micro_steps, world, micro_batch, seq]
    count = micro_steps * world * micro_batch * seq
    # Small numbers more often than large ones, so that there is something to learn.
    values = [min(source.randrange(vocabulary), source.randrange(vocabulary)) for _ in range(count)]
    header = json.dumps({"tokens": {"dtype": "I64", "shape": shape, "data_offsets": [0, 8 * count]}}).encode()
    header += b" " * (-len(header) % 8)
    path.write_bytes(struct.pack("<Q", len(header)) + header + struct.pack(f"<{count}q", *values))
    return path


def read_log(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def losses(path):
    return {line["step"]: line["loss"] for line in read_log(path)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def logged_steps(path):
    return Path(path).read_bytes().count(b"\n") if Path(path).exists() else 0


def latest(folder):
    """Name of the checkpoint that `latest` names, or None."""
    path = Path(folder) / "latest"
    return path.read_text().strip() if path.exists() else None


def assert_complete(checkpoint):
    """Every byte of a checkpoint agrees with its checksums, and nothing else lies in it."""
    result = subprocess.run([DS_CHECKPOINT, "verify", checkpoint], capture_output=True, text=True, timeout=LIMIT)
    assert result.returncode == 0, result.stdout + result.stderr
    ranks = list(checkpoint.glob("rank_*.safetensors"))
    assert sorted(path.name for path in checkpoint.iterdir()) == ["CHECKSUMS", "index.sqlite", *sorted(path.name for path in ranks)]
