"""check_export.py against a real model directory, right and damaged."""
import pathlib

import check_export
import pytest


@pytest.fixture(scope="module")
def export(tmp_path_factory):
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM
    folder = tmp_path_factory.mktemp("export")
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(hidden_size=16, intermediate_size=32, num_hidden_layers=1, num_attention_heads=2, vocab_size=32))
    model.save_pretrained(folder)
    ids = torch.arange(8).reshape(2, 4)
    with torch.no_grad():
        logits = model(input_ids=ids).logits
    save_file({"input_ids": ids, "logits": logits.contiguous()}, folder / "check.safetensors")
    return folder


def test_equal_logits_pass(export, capsys):
    assert check_export.main([str(export)]) == 0
    assert "256 logits agree" in capsys.readouterr().out


def test_a_changed_weight_is_found(export, capsys):
    from safetensors.torch import load_file, save_file
    path = export / "model.safetensors"
    whole = load_file(path)
    changed = dict(whole)
    changed["model.norm.weight"] = whole["model.norm.weight"] * 1.01
    try:
        save_file(changed, path, metadata={"format": "pt"})
        assert check_export.main([str(export)]) == 1
        assert "largest difference" in capsys.readouterr().err
        del changed["model.norm.weight"]
        save_file(changed, path, metadata={"format": "pt"})
        assert check_export.main([str(export)]) == 1
        assert "model.norm.weight" in capsys.readouterr().err
    finally:
        save_file(whole, path, metadata={"format": "pt"})


def test_without_reference_logits_the_export_is_incomplete(tmp_path: pathlib.Path, capsys):
    assert check_export.main([str(tmp_path)]) == 1
    assert "check.safetensors is missing" in capsys.readouterr().err
