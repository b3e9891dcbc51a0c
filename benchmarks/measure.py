"""Run one system once and say what it took. Both sides are measured the same way, from outside.

start_s   from starting the launcher to the line that the program writes when its first optimizer step is done
peak_mb   largest resident size of any process of the job, as the kernel accounts it for the launcher and all children it waited for
job_mb    largest sum over the job's processes, shared pages counted once (proportional set size); only for the rows in MEMORY
seconds   of each optimizer step, by the program's own clock
"""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time

import load

ROOT = pathlib.Path(__file__).resolve().parent.parent
WORLD = 2
TIME_LIMIT = 900  # seconds for one run
PEER_PYTHON = ROOT / ".venv-peers" / "bin" / "python"

# name -> (model size, micro batch, sequence length, steps, steps that warm up)
# "warm" is run once and not counted: files come into the page cache, and DeepSpeed compiles its helper for the first time.
SHAPES = {"warm": ("tiny", 1, 32, 2, 1), "tiny": ("tiny", 1, 32, 60, 20), "small": ("small", 1, 32, 14, 4),
          "throughput": ("small", 4, 256, 7, 2), "bf16": ("small", 4, 256, 5, 1), "deep": ("deep", 4, 32, 20, 6),
          "smol": ("smol", 1, 256, 5, 1), "memory": ("large", 1, 32, 3, 1)}
BF16 = {"bf16"}      # rows in bf16 with fp32 masters
MEMORY = {"memory"}  # rows that watch the memory of the whole job; looking costs time

PEERS = ["ddp", "fsdp2", "deepspeed-0", "deepspeed-1", "deepspeed-2", "deepspeed-3"]
OURS = ["ours-0", "ours-1", "ours-2", "ours-3"]


class RunFailed(Exception):
    pass


def ds_config(stage, micro_batch, bf16=False):
    """Our settings, equal to those in train_peer.py."""
    return {"bf16": {"enabled": bf16}, "train_micro_batch_size_per_gpu": micro_batch, "gradient_clipping": 1.0, "zero_optimization": {"stage": stage},
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1}}}


def inputs(shape):
    """The folder with model/ and tokens.safetensors for a shape; made when it is not there."""
    size, micro_batch, seq, steps, _ = SHAPES[shape]
    folder = ROOT / ".cache" / "bench" / f"{size}-{micro_batch}x{seq}-{steps}"
    if not (folder / "tokens.safetensors").is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        python = PEER_PYTHON if PEER_PYTHON.exists() else ROOT / ".venv" / "bin" / "python"
        subprocess.run([python, ROOT / "benchmarks" / "make_inputs.py", size, str(micro_batch), str(seq), str(steps), folder], check=True)
    return folder


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def command(system, shape, scratch, first):
    """The command line that runs `system`; it writes to the file `first` after the first step."""
    size, micro_batch, seq, steps, _ = SHAPES[shape]
    name, _, stage = system.partition("-")
    if name == "ours":
        folder = inputs(shape)
        config = scratch / "ds_config.json"
        config.write_text(json.dumps(ds_config(int(stage), micro_batch, shape in BF16)))
        program = [ROOT / "build" / "bin" / "ds_train", "--model", folder / "model", "--data", folder / "tokens.safetensors",
                   "--deepspeed_config", config, "--seq", seq, "--steps", steps, "--log_json", first]
        line = [ROOT / "build" / "bin" / "deepspeed", "--num_ranks", WORLD, "--master_port", free_port(), *program]
    else:
        line = [PEER_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", WORLD, "--master-port", free_port(),
                ROOT / "benchmarks" / "train_peer.py", "--system", name, "--stage", stage or "3", "--size", size, "--seq", seq,
                "--micro-batch", micro_batch, "--steps", steps, "--first", first, *(["--bf16"] if shape in BF16 else [])]
    return [str(part) for part in line]


def environment():
    """One thread per rank and no accelerator, for both sides."""
    env = dict(os.environ, OMP_NUM_THREADS="1", DS_ACCELERATOR="cpu", CUDA_VISIBLE_DEVICES="", TOKENIZERS_PARALLELISM="false",
               TORCH_EXTENSIONS_DIR=str(ROOT / ".cache" / "bench" / "torch_extensions"))
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"):
        env.pop(name, None)
    return env


def results(system, first, output):
    """(losses, seconds) of every step, from what the program wrote."""
    if system.startswith("ours"):
        steps = [json.loads(line) for line in first.read_text().splitlines()]
        return [step["loss"] for step in steps], [step["step_s"] for step in steps]
    match = re.search(r"^.*PEER (\{.*\})\s*$", output, re.M)
    if not match:
        raise RunFailed(f"{system} printed no result:\n{output[-2000:]}")
    peer = json.loads(match.group(1))
    return peer["losses"], peer["seconds"]


def session_mb(session):
    """Memory of the processes of a session and of what they started, shared pages counted once, in MB."""
    parents, found = {}, {session}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                pass  # it has just ended
    grown = True
    while grown:
        more = {pid for pid, parent in parents.items() if parent in found} - found
        grown = bool(more)
        found |= more
    total = 0
    for pid in found:
        try:
            rollup = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
        except OSError:
            continue
        match = re.search(r"^Pss:\s+(\d+) kB", rollup, re.M)
        total += int(match[1]) if match else 0
    return total / 1024


def run(system, shape):
    """Run `system` on `shape` once. Returns {start_s, peak_mb, job_mb, seconds, losses}. Raises RunFailed."""
    if system.startswith("ours"):
        inputs(shape)
    elif not PEER_PYTHON.exists():
        raise RunFailed(f"{system} needs .venv-peers: run make bench-peers")
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        first = scratch / "first"
        line = command(system, shape, scratch, first)
        with open(scratch / "output", "w+") as output, load.Load() as measured:
            begin = time.perf_counter()
            process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment(), cwd=ROOT,
                                       start_new_session=True)
            start_s = status = None
            job_mb = 0.0
            while status is None:
                if start_s is None and first.exists() and b"\n" in first.read_bytes():
                    start_s = time.perf_counter() - begin
                pid, code, usage = os.wait4(process.pid, os.WNOHANG)
                if pid:
                    status = process.returncode = os.waitstatus_to_exitcode(code)
                elif time.perf_counter() - begin > TIME_LIMIT:
                    os.killpg(process.pid, signal.SIGKILL)
                    raise RunFailed(f"{system} on {shape} did not end within {TIME_LIMIT} s")
                elif shape in MEMORY:
                    job_mb = max(job_mb, session_mb(process.pid))
                    time.sleep(0.2)
                else:
                    time.sleep(0.005 if start_s is None else 0.05)
            output.seek(0)
            text = output.read()
        if status:
            raise RunFailed(f"{system} on {shape} ended with {status}: {' '.join(line)}\n{text[-3000:]}")
        losses, seconds = results(system, first, text)
    if start_s is None or len(seconds) != SHAPES[shape][3]:
        raise RunFailed(f"{system} on {shape}: got {len(seconds)} steps, expected {SHAPES[shape][3]}\n{text[-2000:]}")
    return {"others": measured.others, "start_s": start_s, "peak_mb": usage.ru_maxrss / 1024,
            "job_mb": job_mb, "seconds": seconds, "losses": losses}


def backend():
    """What our ranks of one host talk over."""
    return os.environ.get("DS_COMM_BACKEND", "shm")


def machine():
    """A description of this machine, for the table's head."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    model = re.search(r"model name\s*: (.*)", info)
    flags = set((re.search(r"flags\s*: (.*)", info) or [None, ""])[1].split())
    memory = int(re.search(r"MemTotal:\s+(\d+)", pathlib.Path("/proc/meminfo").read_text())[1]) / 2**20
    known = [flag for flag in ("avx2", "avx512f", "avx512_bf16", "avx512_fp16", "amx_bf16") if flag in flags]
    name = model[1] if model else "unknown processor"
    return f"{name}, {os.cpu_count()} cores ({', '.join(known) or 'no vector extensions known here'}), {memory:.0f} GB, {sys.platform}"
