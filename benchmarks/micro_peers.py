"""The peers' side of the micro rows: micro_peers.py ROW [REPEAT]. Run on the CPU; rows of two ranks are started by torchrun.

Prints lines "MICRO {json}" as micro_bench does: row, system, ms of each repetition, check, extra_mb; or row, system and error.
"""
import json
import os
import pathlib
import re
import sys
import time

import torch

WARM = 2
KINDS = {"torch fused": {"fused": True}, "torch foreach": {"foreach": True}}


def sample(body, repeat, prepare=None, warm=WARM):
    times = []
    for turn in range(-warm, repeat):
        if prepare:
            prepare()
        begin = time.perf_counter()
        body()
        if turn >= 0:
            times.append((time.perf_counter() - begin) * 1e3)
    return times


def checksum(tensors):
    """A sum over all elements in which each place counts differently, so that exchanged or missing parts show; the same as in micro_bench."""
    total, chunk = 0.0, 1 << 20
    for tensor in tensors:
        for begin, part in zip(range(0, tensor.numel(), chunk), tensor.detach().view(-1).split(chunk)):
            total += part.double().dot(torch.arange(begin, begin + part.numel(), dtype=torch.double).remainder_(13).add_(1)).item()
    return total


def say(**line):
    if os.environ.get("RANK", "0") == "0":
        print("MICRO " + json.dumps(line), flush=True)


def run_optimizer(row, count, elements, systems, repeat):
    import deepspeed
    from deepspeed.ops.adam import DeepSpeedCPUAdam
    from deepspeed.runtime.utils import clip_grad_norm_ as deepspeed_clip
    deepspeed.init_distributed(dist_backend="gloo")  # its clip reduces over the data-parallel group, of one rank here
    settings = {"lr": 1e-3, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.01}
    for system in systems:
        parameters = [torch.full((elements,), 1.0, requires_grad=True) for _ in range(count)]
        gradient = (torch.arange(count * elements, dtype=torch.int32) % 1000).float().sub_(499.5).mul_(1e-3)
        for parameter, part in zip(parameters, gradient.split(elements)):
            parameter.grad = torch.empty_like(parameter)
            parameter.source = part
        if system == "DeepSpeedCPUAdam":
            optimizer, clip = DeepSpeedCPUAdam(parameters, **settings), deepspeed_clip
        else:
            optimizer, clip = torch.optim.AdamW(parameters, **settings, **KINDS[system]), torch.nn.utils.clip_grad_norm_

        def prepare():  # clipping changes the gradients
            for parameter in parameters:
                parameter.grad.copy_(parameter.source)

        def step():
            clip(parameters, 1.0)
            optimizer.step()
        times = sample(step, repeat, prepare)
        say(row=row, system=system, ms=times, check=checksum(parameters), extra_mb=0)
        del parameters, optimizer, gradient


def optimizer(repeat):
    run_optimizer("optimizer + clip, 100 M in one tensor", 1, 100_000_000, ("DeepSpeedCPUAdam", "torch fused"), repeat)


def small_tensors(repeat):
    run_optimizer("optimizer + clip, 4096 tensors x 1024", 4096, 1024, ("DeepSpeedCPUAdam", "torch fused", "torch foreach"), repeat)


def all_reduce(repeat):
    # DeepSpeed starts its shared memory within init_distributed, and only where these say that all ranks are on this host.
    os.environ.setdefault("USER", "user")
    os.environ.setdefault("LOCAL_SIZE", os.environ["WORLD_SIZE"])
    import deepspeed
    import torch.distributed as dist
    deepspeed.init_distributed(dist_backend="gloo")
    rank, world = dist.get_rank(), dist.get_world_size()

    def measure(system, reduce):
        for kib in (64, 1024, 32 * 1024, 256 * 1024):
            x = torch.arange(kib * 256, dtype=torch.int32).remainder_(1000).float().mul_(rank + 1.0)
            reduce(x)
            check = checksum([x])
            x.zero_()
            times = sample(lambda: reduce(x), repeat * (20 if kib <= 1024 else 1), dist.barrier)
            say(row=f"all-reduce, {f'{kib} KiB' if kib < 1024 else f'{kib // 1024} MiB'}", system=system, ms=times, check=check, extra_mb=0)
    measure("Gloo", dist.all_reduce)
    try:
        from deepspeed.ops.op_builder import ShareMemCommBuilder
        ShareMemCommBuilder().load().initialize(world, rank)
        measure("DeepSpeed shm", torch.ops.deepspeed.inference_all_reduce_)
    except Exception as error:  # noqa: BLE001 - whatever keeps it from running belongs into the table's notes
        say(row="all-reduce", system="DeepSpeed shm", error=f"{type(error).__name__}: {error}"[:300])
    dist.barrier()
    dist.destroy_process_group()


def zero_path(repeat):
    import torch.distributed as dist
    dist.init_process_group("gloo")
    gradients = torch.arange(25 << 20, dtype=torch.int32).remainder_(1000).float().mul_(dist.get_rank() + 1.0)
    parameters, part = torch.empty(25 << 20), torch.empty((25 << 20) // dist.get_world_size())

    def exchange():
        dist.reduce_scatter_tensor(part, gradients)
        dist.all_gather_into_tensor(parameters, part)
    times = sample(exchange, repeat, dist.barrier)
    say(row="reduce-scatter + all-gather, 100 MiB", system="Gloo", ms=times, check=checksum([parameters]), extra_mb=0)
    dist.barrier()
    dist.destroy_process_group()


def memory_mb(key):
    return int(re.search(rf"{key}:\s+(\d+)", pathlib.Path("/proc/self/status").read_text())[1]) / 1024


def loss(repeat):
    hidden, tokens, vocabulary = 512, 2048, 131072
    x = torch.arange(tokens * hidden).remainder(1013).float().sub_(506).mul_(2e-3).view(tokens, hidden).requires_grad_()
    weight = (torch.arange(vocabulary * hidden, dtype=torch.int32) % 1009).float().sub_(504).mul_(7e-5)
    weight = weight.view(vocabulary, hidden).requires_grad_()
    labels = torch.arange(tokens) * 7919 % vocabulary
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    before, result = memory_mb("VmRSS"), None

    def forget():
        x.grad = weight.grad = None

    def run():
        nonlocal result
        result = torch.nn.functional.cross_entropy(torch.nn.functional.linear(x, weight), labels)
        result.backward()
    times = sample(run, repeat, forget, 1)
    extra_mb = memory_mb("VmHWM") - before - hidden * (tokens + vocabulary) * 4 / 2**20
    slope = weight.grad.abs().sum(dtype=torch.double).item()
    say(row="linear + cross entropy, 2048 tokens, vocabulary 131072", system="torch", ms=times, check=result.item() + slope, extra_mb=extra_mb)


def checkpoint(repeat):
    """torch's distributed checkpoints of a state cut over two ranks: parameters and two moments, 134 M elements each."""
    import shutil
    import tempfile

    import torch.distributed as dist
    import torch.distributed.checkpoint as dcp
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard, distribute_tensor
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    rows, columns = 2048, 4096
    state = {}
    for i in range(16):
        values = torch.arange(rows * columns, dtype=torch.int32).remainder_(1009).float().mul_(1e-3).add_(i).view(rows, columns)
        for kind, factor in (("value", 1.0), ("exp_avg", 0.1), ("exp_avg_sq", 0.2)):
            state[f"{kind}.p{i}"] = distribute_tensor(values * factor, mesh, [Shard(0)])
    folder = pathlib.Path(tempfile.gettempdir()) / "ds_bench_checkpoint_peer"
    future = None

    def clear():
        if future is not None:
            future.result()
        if dist.get_rank() == 0:
            shutil.rmtree(folder, ignore_errors=True)
        dist.barrier()

    def in_background():
        nonlocal future
        future = dcp.async_save(state, checkpoint_id=folder)

    def to_the_end():
        in_background()
        future.result()
    save = sample(lambda: dcp.save(state, checkpoint_id=folder), repeat, clear)
    load = sample(lambda: dcp.load(state, checkpoint_id=folder), repeat, dist.barrier)
    check = checksum([state["value.p3"].full_tensor()])
    stall = sample(in_background, repeat, clear)
    future.result()
    behind = sample(to_the_end, repeat, clear)
    for row, times in (("save", save), ("stall of a save in the background", stall), ("background save to the end", behind), ("load", load)):
        say(row=f"checkpoint of 1.6 GB, {row}", system="DCP", ms=times, check=check, extra_mb=0)
    clear()
    dist.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    {row.__name__: row for row in (optimizer, small_tensors, all_reduce, zero_path, loss, checkpoint)}[sys.argv[1]](int(sys.argv[2]))
