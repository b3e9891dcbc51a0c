"""ds_checkpoint and ds_migrate on checkpoints of real runs, and the flags of ds_train about checkpoints."""

import json
import shutil
import subprocess

import pytest

from training_runs import BIN_DIR, DS_CHECKPOINT, LIMIT, ROOT, arguments, config, losses, train, trained, write_tokens

DS_MIGRATE = BIN_DIR / "ds_migrate"


def call(program, *words):
    return subprocess.run(list(map(str, [program, *words])), capture_output=True, text=True, timeout=LIMIT)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three checkpoints of one run of two ranks."""
    work = tmp_path_factory.mktemp("checkpoints")
    tokens, settings = write_tokens(work / "tokens.safetensors", 6), config(work / "ds_config.json")
    trained(*arguments(tokens, settings, "--steps", 3, "--save", work / "run", "--save_interval", 1, "--log_json", work / "log.jsonl"))
    return work


@pytest.fixture
def folder(run, tmp_path):
    """A copy that a test may damage."""
    shutil.copytree(run / "run", tmp_path / "run")
    return tmp_path / "run"


def flip(path, at):
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_ls_lists_steps_and_problems(folder):
    rows = json.loads(call(DS_CHECKPOINT, "ls", folder, "--json").stdout)
    assert [row["tag"] for row in rows] == ["global_step1", "global_step2", "global_step3"]
    assert [row["global_steps"] for row in rows] == [1, 2, 3]
    assert all(row["world_size"] == 2 and row["kind"] == "native" and row["problem"] == "" and row["bytes"] > 100_000 for row in rows)
    assert [row["latest"] for row in rows] == [False, False, True]
    flip(folder / "global_step2" / "index.sqlite", 5000)
    text = call(DS_CHECKPOINT, "ls", folder).stdout
    assert "global_step3" in text and "(latest)" in text and "index.sqlite: its hash" in text


def test_show_prints_counters_and_parameters(folder):
    report = json.loads(call(DS_CHECKPOINT, "show", folder, "--json", "--parameters").stdout)
    assert report["path"].endswith("global_step3")
    assert report["run"]["global_steps"] == 3
    assert report["client_state"] == {"consumed": 12}
    assert report["optimizer_states"] == ["moment", "variance"]
    names = {entry["name"]: entry for entry in report["list"]}
    assert names["model.embed_tokens.weight"]["trained"] is True
    assert "run.global_steps: 1" in call(DS_CHECKPOINT, "show", folder / "global_step1").stdout


def test_verify_names_file_tensor_and_bytes(folder):
    assert call(DS_CHECKPOINT, "verify", folder, "--all").returncode == 0
    damaged = folder / "global_step2" / "rank_00001_of_00002.safetensors"
    flip(damaged, damaged.stat().st_size // 2)
    result = call(DS_CHECKPOINT, "verify", folder, "--all")
    assert result.returncode == 1
    assert f"{damaged}: bytes 0 to " in result.stdout and " of model." in result.stdout
    assert "global_step3: checksums agree" in result.stdout
    assert call(DS_CHECKPOINT, "verify", folder).returncode == 0  # latest
    assert call(DS_CHECKPOINT, "verify", folder, "--tag", "global_step2").returncode == 1
    none = call(DS_CHECKPOINT, "verify", folder, "--tag", "nothing")
    assert none.returncode == 1 and "E3000" in none.stdout + none.stderr


@pytest.mark.skipif(shutil.which("xxhsum") is None, reason="needs xxhsum")
def test_checksums_are_those_of_xxhsum(folder):
    result = subprocess.run(["xxhsum", "-c", "CHECKSUMS"], cwd=folder / "global_step3", capture_output=True, text=True)
    assert result.returncode == 0, result.stdout + result.stderr


def test_sqlite_of_python_reads_the_index(folder):
    sqlite3 = pytest.importorskip("sqlite3")
    database = sqlite3.connect(f"file:{folder / 'global_step3' / 'index.sqlite'}?mode=ro", uri=True)
    assert database.execute("PRAGMA integrity_check").fetchone() == ("ok",)
    meta = dict(database.execute("SELECT key, value FROM meta"))
    assert meta["format"] == "deepspeed-native-checkpoint" and meta["version"] == "2"
    whole = "SELECT p.name, p.shape, SUM(q.elements) FROM parameter p JOIN piece q ON q.parameter = p.id WHERE q.kind = 'variance' GROUP BY p.id"
    for name, shape, elements in database.execute(whole):
        product = 1
        for extent in json.loads(shape):
            product *= extent
        assert elements == product, name


def test_diff_tells_what_differs(folder):
    same = call(DS_CHECKPOINT, "diff", folder / "global_step2", folder / "global_step2")
    assert same.returncode == 0 and same.stdout == ""
    other = call(DS_CHECKPOINT, "diff", folder / "global_step2", folder / "global_step3")
    assert other.returncode == 1
    assert "run.global_steps: 2, 3" in other.stdout
    assert "value of model.embed_tokens.weight: max |a - b| " in other.stdout


def test_prune_keeps_the_newest(folder):
    dry = call(DS_CHECKPOINT, "prune", folder, "--keep", 1, "--dry_run")
    assert dry.stdout.count("would remove") == 2 and (folder / "global_step1").exists()
    assert call(DS_CHECKPOINT, "prune", folder, "--keep", 1).returncode == 0
    assert sorted(path.name for path in folder.glob("global_step*")) == ["global_step3"]
    assert call(DS_CHECKPOINT, "prune", folder, "--keep", 0).returncode == 2


def test_a_save_in_the_background_is_the_same_to_the_last_bit(run, tmp_path):
    words = arguments(run / "tokens.safetensors", run / "ds_config.json", "--steps", 3, "--save_interval", 1)
    trained(*words, "--save", tmp_path / "run", "--async_save", "--keep", 2, "--log_json", tmp_path / "log.jsonl")
    assert losses(tmp_path / "log.jsonl") == losses(run / "log.jsonl")
    assert sorted(path.name for path in (tmp_path / "run").glob("global_step*")) == ["global_step2", "global_step3"]
    for tag in ("global_step2", "global_step3"):
        for path in (run / "run" / tag).iterdir():
            assert path.read_bytes() == (tmp_path / "run" / tag / path.name).read_bytes(), path


def test_fallback_is_taken_only_when_asked_for(run, folder, tmp_path):
    words = arguments(run / "tokens.safetensors", run / "ds_config.json", "--steps", 3, "--load", folder, "--log_json", tmp_path / "log.jsonl")
    flip(folder / "global_step3" / "rank_00000_of_00002.safetensors", 5000)
    refused = train(*words)
    assert refused.returncode == 1
    assert "E3001" in refused.stderr and "global_step3/rank_00000_of_00002.safetensors" in refused.stderr
    result = trained(*words, "--fallback")
    assert "global_step2 at step 2" in result.stderr and "E3001" in result.stderr
    assert losses(tmp_path / "log.jsonl")[2] == losses(run / "log.jsonl")[2]


def test_a_folder_in_use_by_another_save_is_refused(run, folder):
    fcntl = pytest.importorskip("fcntl")
    with open(folder / ".lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        words = arguments(run / "tokens.safetensors", run / "ds_config.json", "--steps", 1, "--save", folder)
        for more in ([], ["--async_save"]):
            refused = train(*words, *more)
            assert refused.returncode == 1
            assert "E3002" in refused.stderr and "another save at work" in refused.stderr


def test_migrate_turns_version_1_into_the_present_one(tmp_path):
    old = ROOT / "tests" / "backward_compat" / "v1"
    dry = call(DS_MIGRATE, old, tmp_path / "new", "--dry_run")
    assert dry.returncode == 0 and "dry run" in dry.stdout and not (tmp_path / "new").exists()
    result = call(DS_MIGRATE, old, tmp_path / "new", "--all")
    assert result.returncode == 0, result.stderr
    assert "native, version 1" in result.stdout and "100 %" in result.stderr
    assert (tmp_path / "new" / "latest").read_text() == "global_step3"
    assert call(DS_CHECKPOINT, "verify", tmp_path / "new").returncode == 0
    same = call(DS_CHECKPOINT, "diff", old, tmp_path / "new")
    assert same.returncode == 0, same.stdout
    again = call(DS_MIGRATE, old, tmp_path / "new")
    assert again.returncode == 2 and "exists" in again.stderr


def test_migrate_reads_the_real_deepspeeds_checkpoints(tmp_path):
    cases = sorted((ROOT / "tests" / "golden" / "checkpoints").glob("*/latest")) + sorted((ROOT / "tests" / "golden" / "checkpoints").glob("*/*/latest"))
    assert cases
    done = 0
    for latest in cases[:4]:
        result = call(DS_MIGRATE, latest.parent, tmp_path / str(done))
        if result.returncode and "E1200" in result.stderr:
            continue  # refused by name
        assert result.returncode == 0, result.stderr
        assert call(DS_CHECKPOINT, "verify", tmp_path / str(done)).returncode == 0
        same = call(DS_CHECKPOINT, "diff", latest.parent, tmp_path / str(done))
        assert same.returncode == 0, same.stdout
        done += 1
    assert done > 0
