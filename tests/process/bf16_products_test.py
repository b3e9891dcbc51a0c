"""How bf16 weights are multiplied: one choice for all ranks of a job."""
import pytest

from hosts_test import finish, start
from training_runs import DS_TRAIN, arguments, config, free_port, losses, train, write_tokens

pytestmark = pytest.mark.skipif(not DS_TRAIN.exists(), reason="ds_train is not built (it needs torch)")


def test_all_ranks_take_the_choice_of_rank_0(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.safetensors", 4)
    words = arguments(tokens, config(tmp_path / "ds_config.json", stage=1, bf16={"enabled": True}), "--log_json")
    curves = {}
    for name, choices in (("native", ["native", "native"]), ("fp32", ["fp32", "fp32"]), ("mixed", ["native", "fp32"])):
        ranks = start(free_port(), [*words, tmp_path / name], world=2, each=[{"DS_BF16_PRODUCTS": choice} for choice in choices])
        outputs = finish(ranks)
        assert [rank.returncode for rank in ranks] == [0, 0], outputs
        curves[name] = losses(tmp_path / name)
    assert curves["native"] != curves["fp32"], "the two ways cannot be told apart here"
    assert curves["mixed"] == curves["native"]


def test_a_choice_that_does_not_exist_is_told(tmp_path):
    tokens = write_tokens(tmp_path / "tokens.safetensors", 4)
    words = arguments(tokens, config(tmp_path / "ds_config.json", stage=1, bf16={"enabled": True}))
    result = train(*words, DS_BF16_PRODUCTS="nativ")
    assert result.returncode != 0 and 'DS_BF16_PRODUCTS: got "nativ", allowed auto, native, fp32' in result.stderr
