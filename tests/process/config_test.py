"""ds_config as a user or a script calls it. The binary is $DEEPSPEED_BIN_DIR/ds_config, else build/bin/ds_config of this repository."""

import json
import os
import subprocess
from pathlib import Path

import pytest

BIN_DIR = Path(os.environ.get("DEEPSPEED_BIN_DIR", Path(__file__).resolve().parents[2] / "build" / "bin"))
CONFIG = BIN_DIR / "ds_config"

pytestmark = pytest.mark.skipif(not CONFIG.exists(), reason="ds_config is not built")

TEN_ERRORS = {
    "train_batch_size": 8,
    "train_batch_sise": 8,
    "gradient_clipping": -1,
    "steps_per_print": 0,
    "prescale_gradients": "maybe",
    "communication_data_type": "fp8",
    "zero_optimization": {"stage": 7, "reduce_bucket_size": 1.5},
    "fp16": {"enabled": "perhaps"},
    "optimizer": {"type": "Adm"},
    "scheduler": {"type": "WarmupLRR"},
}


def check(folder, configuration, *arguments):
    file = folder / "ds_config.json"
    file.write_text(configuration if isinstance(configuration, str) else json.dumps(configuration))
    return subprocess.run([str(CONFIG), "check", str(file), *arguments], capture_output=True, text=True, timeout=60)


def test_a_file_with_ten_errors_reports_all_ten(tmp_path):
    result = check(tmp_path, TEN_ERRORS)
    assert result.returncode == 3
    assert result.stdout == ""
    assert "has 10 errors" in result.stderr
    for key in ("train_batch_sise", "gradient_clipping", "steps_per_print", "prescale_gradients", "communication_data_type",
                "zero_optimization.stage", "zero_optimization.reduce_bucket_size", "fp16.enabled", "optimizer.type", "scheduler.type"):
        assert f"  {key}: got" in result.stderr


def test_values_say_where_they_come_from(tmp_path):
    configuration = {
        "train_batch_size": 8,
        "zero_optimization": {"stage": 2},
        "optimizer": {"type": "Adagrad", "params": {"eps": 1e-6}},
        "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 5}},
    }
    result = check(tmp_path, configuration, "--world", "4", "--json")
    assert result.returncode == 0
    values = json.loads(result.stdout)["values"]
    for key, value, source in (("train_batch_size", 8, "file"), ("train_micro_batch_size_per_gpu", 2, "computed"),
                               ("data_parallel_size", 4, "computed"), ("zero_optimization.stage", 2, "file"),
                               ("gradient_clipping", 0.0, "default"), ("optimizer.params.lr", 0.01, "default"),
                               ("optimizer.params.eps", 1e-6, "file"), ("scheduler.params.warmup_num_steps", 5, "file"),
                               ("scheduler.params.warmup_type", "log", "default")):
        assert values[key] == {"value": value, "from": source}, key
    assert "optimizer.params.betas" not in values


def test_the_number_of_ranks_counts_and_syntax_errors_are_reported(tmp_path):
    assert check(tmp_path, {"train_batch_size": 8}, "--world", "2").stdout.count("train_micro_batch_size_per_gpu = 4  (computed)") == 1
    uneven = check(tmp_path, {"train_batch_size": 8}, "--world", "3", "--json")
    assert uneven.returncode == 3
    assert [error["kind"] for error in json.loads(uneven.stdout)["errors"]] == ["inconsistent"]
    assert check(tmp_path, '{"train_batch_size": ').returncode == 3


def test_wrong_usage_and_a_missing_file(tmp_path):
    assert subprocess.run([str(CONFIG)], capture_output=True, timeout=60).returncode == 2
    assert check(tmp_path, {}, "--world", "0").returncode == 2
    missing = subprocess.run([str(CONFIG), "check", str(tmp_path / "none.json")], capture_output=True, text=True, timeout=60)
    assert missing.returncode == 1 and "none.json" in missing.stderr


@pytest.mark.parametrize(("optimizer", "expected"), [
    ({"type": "Muon", "params": {"adam_lr": 1e-3}}, {"muon_lr": 0.02, "adam_lr": 1e-3, "momentum": 0.95, "betas": [0.9, 0.95]}),
    ({"type": "AdamW", "params": {"torch_adam": True, "amsgrad": True}}, {"amsgrad": True, "maximize": False, "weight_decay": 0.01}),
    ({"type": "SGD", "params": {"momentum": 0.9}}, {"momentum": 0.9, "dampening": 0.0, "nesterov": False})])
def test_every_parameter_of_the_optimizer_is_listed(tmp_path, optimizer, expected):
    values = json.loads(check(tmp_path, {"train_batch_size": 1, "optimizer": optimizer}, "--json").stdout)["values"]
    for name, value in expected.items():
        assert values[f"optimizer.params.{name}"]["value"] == value, name
