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


# --- checkpoints made here, for the faults that converters were reported for: A45, A54, A55, A56, A67


def write_stage2(folder, groups, ranks, shared=None, buffers=None, bf16=False):
    """A ZeRO-2 checkpoint of groups {name: tensor}; the runs of a group are its parameters back to back, padded to twice the ranks."""
    import torch
    (folder / "step").mkdir(parents=True)
    (folder / "latest").write_text("step")
    runs = []
    for group in groups:
        flat = torch.cat([tensor.flatten() for tensor in group.values()])
        padding = -len(flat) % (2 * ranks)
        parts = list(torch.cat([flat, torch.full((padding,), 99.0)]).chunk(ranks))
        if not bf16 and padding:  # the fp16 and fp32 optimizers store the last run without its padding
            parts[-1] = parts[-1][:len(parts[-1]) - min(padding, len(parts[-1]))]
        runs.append([part.clone() for part in parts])
    for rank in range(ranks):
        state = {"partition_count": [ranks] * len(groups), "base_optimizer_state": {"state": {}, "param_groups": []},
                 "single_partition_of_fp32_groups": [run[rank] for run in runs], **({} if bf16 else {"zero_stage": 2})}
        torch.save({"optimizer_state_dict": state}, folder / "step" / f"{'bf16_' if bf16 else ''}zero_pp_rank_{rank}_mp_rank_00_optim_states.pt")
    torch.save({"module": buffers or {}, "buffer_names": list(buffers or {}), "shared_params": shared or {},
                "param_shapes": [{name: tensor.shape for name, tensor in group.items()} for group in groups]},
               folder / "step" / "mp_rank_00_model_states.pt")


def written(folder, output, *more):
    result = run(folder, output, *more)
    assert result.returncode == 0, result.stderr
    found = {}
    for path in output.glob("*.safetensors"):
        for name, entry in tensors(path).items():
            assert name not in found, name
            found[name] = entry
    return found


def as_entry(tensor):
    return "F32", list(tensor.shape), tensor.float().numpy().tobytes()


def check_stage2(tmp_path, groups, ranks, extra=None, *more, **options):
    write_stage2(tmp_path / "zero", groups, ranks, **options)
    expected = {name: as_entry(tensor) for group in groups for name, tensor in group.items()}
    expected.update({name: as_entry(tensor) for name, tensor in (extra or {}).items()})
    assert written(tmp_path / "zero", tmp_path / "out", *more) == expected


def test_a54_twelve_ranks_are_taken_in_the_order_of_their_numbers(tmp_path):
    import torch
    check_stage2(tmp_path, [{"w": torch.arange(24.0)}], 12)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("bf16", [False, True])
def test_a55_padding_is_not_taken_for_elements(tmp_path, ranks, bf16):
    import torch
    sizes = (7, 1, 30, 4, 15)  # 57 in all
    check_stage2(tmp_path, [{f"p{i}": torch.randn(size) for i, size in enumerate(sizes)}], ranks, bf16=bf16)


def test_a56_groups_of_other_sizes(tmp_path):
    import torch
    check_stage2(tmp_path, [{"decay": torch.randn(5)}, {"plain": torch.randn(3)}], 2)


def test_a45_a67_other_names_of_a_tied_weight_and_buffers_in_small_shards(tmp_path):
    import torch
    table, table16 = torch.randn(40, 8), torch.randn(3).half()
    check_stage2(tmp_path, [{"embed": table, "norm": torch.randn(8)}], 2, {"head": table, "mean": table16}, "--max_shard_size", "1KB",
                 shared={"head": "embed"}, buffers={"mean": table16})


def test_parameters_that_do_not_fit_the_runs_are_told(tmp_path):
    import torch
    write_stage2(tmp_path / "zero", [{"w": torch.randn(40)}], 2)
    model = tmp_path / "zero" / "step" / "mp_rank_00_model_states.pt"
    state = torch.load(model, weights_only=False)
    for shape, word in (((20,), "other parameters than it was saved with"), ((50,), "ends inside w")):
        state["param_shapes"] = [{"w": torch.Size(shape)}]
        torch.save(state, model)
        result = run(tmp_path / "zero", tmp_path / "out")
        assert result.returncode == 1 and word in result.stderr, result.stderr
