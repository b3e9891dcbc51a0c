"""Check that every file includes only lower rooms, as docs/architecture.md draws them.

    check_layers.py [ROOT]

A file in src/ROOM may include include/deepspeed, its own room, and rooms of a strictly lower level. Public headers include only each other.
Examples use only the public headers. The rooms without torch include nothing of torch, and only src/accel and src/comm name a vendor.
"""
import pathlib
import re
import sys

import tree

LEVELS = {
    "base": 0,
    "shm": 1, "config": 1, "accel": 1, "kernels": 1, "io": 1, "formats": 1,
    "tensor": 2, "comm": 2, "monitor": 2, "launcher": 2, "schedule": 2, "precision": 2, "store": 2,
    "comm_nccl": 3, "comm_mpi": 3, "optim": 3, "checkpoint": 3, "offload": 3, "data": 3, "recompute": 3,
    "zero": 4, "parallel": 4, "lora": 4,
    "models": 5,
    "engine": 6,
}
TORCH_FREE = {"base", "shm", "config", "kernels", "io", "formats", "schedule", "precision", "store", "launcher"}
VENDOR_ROOMS = {"accel", "comm", "comm_nccl"}

INCLUDE = re.compile(r'^\s*#\s*include\s*([<"])([^>"]+)[>"]', re.M)
TORCH = re.compile(r"^(torch|ATen|c10|caffe2|gloo)/")
VENDOR_HEADER = re.compile(r"(^|/)(cuda|hip|nccl|rccl|nvtx3?)[/._]", re.I)
VENDOR_NAME = re.compile(r"\b(kCUDA|kHIP|(?:at|c10|torch)::(?:cuda|hip))\b")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.S)


def check_room(name, room, text):
    """Problems of one file in src/`room`."""
    problems = []
    if room not in LEVELS:
        return [f"{name}: room '{room}' has no level; allowed {', '.join(sorted(LEVELS))} (scripts/check_layers.py)"]
    for _, target in INCLUDE.findall(text):
        other = target.split("/")[0] if "/" in target else None
        if other in LEVELS and other != room and LEVELS[other] >= LEVELS[room]:
            problems.append(f"{name}: includes {target}: room {other} has level {LEVELS[other]}, allowed below {LEVELS[room]} ({room})")
        if room in TORCH_FREE and TORCH.match(target):
            problems.append(f"{name}: includes {target}: room {room} is built without torch")
        if name.suffix == ".h" and target == "torch/torch.h":
            problems.append(f"{name}: includes torch/torch.h: headers take the narrow ones (ATen/core/Tensor.h, ...)")
        if room not in VENDOR_ROOMS and VENDOR_HEADER.search(target):
            problems.append(f"{name}: includes {target}: only src/accel and src/comm name a vendor")
    if room not in VENDOR_ROOMS:
        for match in VENDOR_NAME.findall(COMMENT.sub("", text)):
            problems.append(f"{name}: says {match}: only src/accel and src/comm name a vendor")
    return problems


def check_public(name, text, allowed):
    """Problems of a public header or an example: no header of ours but those of include/deepspeed."""
    return [f"{name}: includes {target}: {allowed}" for _, target in INCLUDE.findall(text) if target.split("/")[0] in LEVELS and "/" in target]


def check(root):
    problems = []
    for name in tree.files(root, ".h", ".cpp", ".cu", ".hip"):
        text = (root / name).read_text(encoding="utf-8", errors="replace")
        if name.parts[0] == "src" and len(name.parts) > 2:
            problems += check_room(name, name.parts[1], text)
        elif name.parts[0] == "include":
            problems += check_public(name, text, "public headers include only public headers")
        elif name.parts[0] == "examples":
            problems += check_public(name, text, "examples use only public headers")
    return problems


def main():
    root = pathlib.Path(sys.argv[1]) if len(sys.argv) > 1 else tree.ROOT
    return tree.report("layers", check(root))


if __name__ == "__main__":
    sys.exit(main())
