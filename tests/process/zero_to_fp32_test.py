"""zero_to_fp32 on checkpoints that the real DeepSpeed wrote."""
import json
import shutil
import struct
import subprocess
from pathlib import Path

import pytest

from training_runs import BIN_DIR, GOLDEN

TOOL = BIN_DIR / "zero_to_fp32"
CASES = sorted(path.name for path in (GOLDEN / "checkpoints").iterdir())


def tensors(path):
    """{name: (shape, bytes)} of a safetensors file."""
    data = Path(path).read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[8 + size:][slice(*entry["data_offsets"])]) for name, entry in header.items()}


def run(*words):
    return subprocess.run([str(word) for word in (TOOL, *words)], capture_output=True, text=True, timeout=60, stdin=subprocess.DEVNULL)


@pytest.mark.parametrize("case", CASES)
def test_weights_are_those_of_the_reference(tmp_path, case):
    result = run(GOLDEN / "checkpoints" / case / "zero", tmp_path)
    assert result.returncode == 0, result.stderr
    assert tensors(tmp_path / "model.safetensors") == tensors(GOLDEN / "checkpoints" / case / "zero_to_fp32.safetensors")


def test_shards_hold_the_same_and_have_an_index(tmp_path):
    folder = GOLDEN / "checkpoints" / "stage3-fp32"
    result = run(folder / "zero", tmp_path, "--max_shard_size", "10KB", "-t", "step")
    assert result.returncode == 0, result.stderr
    index = json.loads((tmp_path / "model.safetensors.index.json").read_text())
    found = {}
    for name in set(index["weight_map"].values()):
        found.update(tensors(tmp_path / name))
    assert found == tensors(folder / "zero_to_fp32.safetensors")
    assert len(set(index["weight_map"].values())) > 2
    assert index["metadata"]["total_size"] == sum(len(data) for _, _, data in found.values())


def damaged(tmp_path, case="stage2-fp32"):
    shutil.copytree(GOLDEN / "checkpoints" / case / "zero", tmp_path / "zero")
    return tmp_path / "zero"


def test_a_missing_rank_is_named(tmp_path):
    folder = damaged(tmp_path)
    (folder / "step" / "zero_pp_rank_1_mp_rank_00_optim_states.pt").unlink()
    result = run(folder, tmp_path / "out")
    assert result.returncode == 1 and "got optimizer files of 1 ranks, allowed the 2 that saved it" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_changed_byte_is_named_or_changes_no_weight(tmp_path):
    path = damaged(tmp_path) / "step" / "zero_pp_rank_0_mp_rank_00_optim_states.pt"
    good, refused = path.read_bytes(), 0
    for place in range(0, len(good), len(good) // 40):
        bad = bytearray(good)
        bad[place] ^= 1
        path.write_bytes(bad)
        result = run(tmp_path / "zero", tmp_path / "out")
        if result.returncode:
            assert result.returncode == 1 and path.name in result.stderr, result.stderr
            refused += 1
        else:  # a byte of the moments, which are not read
            assert tensors(tmp_path / "out" / "model.safetensors") == tensors(GOLDEN / "checkpoints" / "stage2-fp32" / "zero_to_fp32.safetensors")
    assert refused > 5


def test_a_missing_latest_and_a_missing_tag_are_told(tmp_path):
    folder = damaged(tmp_path)
    result = run(folder, tmp_path / "out", "--tag", "global_step7")
    assert result.returncode == 1 and "E3000" in result.stderr and "global_step7" in result.stderr
    (folder / "latest").unlink()
    result = run(folder, tmp_path / "out")
    assert result.returncode == 1 and "name a checkpoint" in result.stderr


def test_parts_of_model_parallel_ranks_are_refused_by_name(tmp_path):
    folder = damaged(tmp_path) / "step"
    shutil.copy(folder / "mp_rank_00_model_states.pt", folder / "mp_rank_01_model_states.pt")
    result = run(tmp_path / "zero", tmp_path / "out")
    assert result.returncode == 3 and "model-parallel" in result.stderr


@pytest.mark.parametrize(("words", "named"), [(("--max_shard_size", "5 apples"), "--max_shard_size"), (("--no_such",), "no_such")])
def test_usage(tmp_path, words, named):
    result = run(GOLDEN / "checkpoints" / "stage1-fp32" / "zero", tmp_path / "out", *words)
    assert result.returncode == 2 and named in result.stderr + result.stdout
    assert run(GOLDEN / "checkpoints" / "stage1-fp32" / "zero", tmp_path / "model.bin").returncode == 2
