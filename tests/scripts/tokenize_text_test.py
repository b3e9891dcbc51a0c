"""The indexed dataset is checked with a reader of its own, written from the format's description."""
import json
import struct

import numpy
import pytest
import tokenize_text
from tokenizers import Tokenizer, models, pre_tokenizers

VOCAB = {"<eos>": 0, "the": 1, "ark": 2, "rested": 3, "?": 4}


@pytest.fixture
def tokenizer(tmp_path):
    made = Tokenizer(models.WordLevel(VOCAB, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    path = tmp_path / "model" / "tokenizer.json"
    path.parent.mkdir()
    made.save(str(path))
    return path


def name_eos(tokenizer):
    (tokenizer.parent / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<eos>"}}))


def read(prefix):
    raw = open(f"{prefix}.idx", "rb").read()
    assert raw[:9] == b"MMIDIDX\x00\x00"
    version, code, count, bounds = struct.unpack_from("<QBQQ", raw, 9)
    assert version == 1
    dtype = {4: "<i4", 8: "<u2"}[code]
    place = 9 + 25
    sizes = numpy.frombuffer(raw, "<i4", count, place)
    offsets = numpy.frombuffer(raw, "<i8", count, place + 4 * count)
    starts = numpy.frombuffer(raw, "<i8", bounds, place + 12 * count)
    assert len(raw) == place + 12 * count + 8 * bounds
    data = open(f"{prefix}.bin", "rb").read()
    items = [numpy.frombuffer(data, dtype, size, offset).tolist() for size, offset in zip(sizes, offsets)]
    assert len(data) == sum(sizes) * numpy.dtype(dtype).itemsize
    return code, items, starts.tolist()


def run(tokenizer, prefix, *paths, options=()):
    return tokenize_text.main(["--tokenizer", str(tokenizer), "--output", str(prefix), *options, *map(str, paths)])


@pytest.mark.parametrize("dtype, code", [("int32", 4), ("uint16", 8)])
def test_text_and_jsonl_become_documents_with_eos(tmp_path, tokenizer, dtype, code):
    name_eos(tokenizer)
    (tmp_path / "a.txt").write_text("the ark\n\nrested")
    (tmp_path / "b.jsonl").write_text('{"text": "ark"}\n\n{"text": "the flood", "id": 3}\n{"text": ""}\n')
    assert run(tokenizer, tmp_path / "out" / "all", tmp_path / "a.txt", tmp_path / "b.jsonl", options=["--dtype", dtype]) == 0
    assert read(tmp_path / "out" / "all") == (code, [[1, 2, 3, 0], [2, 0], [1, 4, 0]], [0, 1, 2, 3])
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["all.bin", "all.idx", "all.meta.json"]


def test_without_eos_nothing_is_appended(tmp_path, tokenizer):
    (tmp_path / "a.txt").write_text("ark")
    assert run(tokenizer, tmp_path / "a", tmp_path / "a.txt") == 0
    assert read(tmp_path / "a")[1] == [[2]]


def test_eos_id_from_the_model_configuration(tmp_path, tokenizer):
    (tokenizer.parent / "config.json").write_text('{"eos_token_id": [0, 4]}')
    (tmp_path / "a.txt").write_text("ark")
    assert run(tokenizer, tmp_path / "a", tmp_path / "a.txt") == 0
    assert read(tmp_path / "a")[1] == [[2, 0]]


def test_second_call_does_nothing_until_a_source_changes(tmp_path, tokenizer, capsys):
    source = tmp_path / "a.txt"
    source.write_text("ark")
    run(tokenizer, tmp_path / "a", source)
    stamp = (tmp_path / "a.bin").stat().st_mtime_ns
    assert run(tokenizer, tmp_path / "a", source) == 0
    assert "up to date" in capsys.readouterr().err
    assert (tmp_path / "a.bin").stat().st_mtime_ns == stamp
    source.write_text("the ark")
    assert run(tokenizer, tmp_path / "a", source) == 0
    assert read(tmp_path / "a")[1] == [[1, 2]]
    (tmp_path / "a.idx").unlink()
    assert run(tokenizer, tmp_path / "a", source) == 0
    assert read(tmp_path / "a")[1] == [[1, 2]]


@pytest.mark.parametrize("name, content, words", [
    ("bad.jsonl", b'{"text": "ark"}\n{"txt": "ark"}\n', "bad.jsonl:2"),
    ("bad.jsonl", b"not json\n", "bad.jsonl:1"),
    ("bad.txt", b"ark \xff", "not UTF-8 at offset 4"),
    ("bad.txt", b"", "no text"),
])
def test_bad_input_is_named_and_leaves_the_old_files(tmp_path, tokenizer, capsys, name, content, words):
    (tmp_path / "good.txt").write_text("ark")
    run(tokenizer, tmp_path / "a", tmp_path / "good.txt")
    (tmp_path / name).write_bytes(content)
    assert run(tokenizer, tmp_path / "a", tmp_path / name) == 1
    assert words in capsys.readouterr().err
    assert read(tmp_path / "a")[1] == [[2]]
    assert not list(tmp_path.glob(".a*"))


def test_missing_files_are_named(tmp_path, tokenizer, capsys):
    assert run(tokenizer, tmp_path / "a", tmp_path / "absent.txt") == 1
    assert "absent.txt" in capsys.readouterr().err
