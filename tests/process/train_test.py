"""ds_train by real processes: curves, resuming, signals, killed ranks and launchers, interrupted saves, errors, and a run on text."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree

import pytest

from training_runs import (DS_TRAIN, GOLDEN, LIMIT, MODEL, ROOT, VOCABULARY, Run, arguments, assert_complete, config, environment, free_port, latest,
                           logged_steps, losses, read_log, train, trained, wait_until, write_tokens)

pytestmark = pytest.mark.skipif(not DS_TRAIN.exists(), reason="ds_train is not built (it needs torch)")

CASE = GOLDEN / "train" / "stage3-fp32-w2"
LOG_KEYS = ["step", "loss", "grad_norm", "lr", "loss_scale", "skipped", "tokens_per_s", "step_s", "rss_mb"]


@pytest.fixture(scope="module")
def tokens(tmp_path_factory):
    """More micro steps than any test here lives to see."""
    return write_tokens(tmp_path_factory.mktemp("data") / "tokens.safetensors", 4000)


# --- curves


def test_log_of_a_zero3_run_has_the_losses_of_the_reference(tmp_path):
    log = tmp_path / "new" / "log.jsonl"
    result = trained(*arguments(CASE / "tokens.safetensors", CASE / "ds_config.json", "--log_json", log))
    lines = read_log(log)
    expected = json.loads((CASE / "expected.json").read_text())["steps"]
    allowed = json.loads((CASE / "case.json").read_text())["tolerance"]
    assert [line["step"] for line in lines] == [step["step"] for step in expected]
    for line, step in zip(lines, expected):
        assert list(line) == LOG_KEYS
        assert line["loss"] == pytest.approx(step["mean_loss"], abs=allowed["loss_abs"])
        assert line["grad_norm"] == pytest.approx(step["grad_norm"], rel=allowed["norm_rel"])
        assert line["lr"] == step["lr"][0]
        assert line["loss_scale"] == 1.0 and line["skipped"] is False
        assert line["tokens_per_s"] > 0 and line["step_s"] > 0 and line["rss_mb"] > 0
    assert "step 6/6" in result.stderr
    assert result.stdout == ""


def test_back_ends_give_the_same_bits(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json")
    for backend in ("shm", "gloo"):
        result = trained(*arguments(tokens, settings, "--steps", 5, "--log_json", tmp_path / backend), DS_COMM_BACKEND=backend)
        assert f"2 ranks ({backend})" in result.stderr
    assert losses(tmp_path / "shm") == losses(tmp_path / "gloo")


def test_stages_give_the_same_losses(tmp_path, tokens):
    curves = {}
    for stage in range(4):
        log = tmp_path / f"{stage}.jsonl"
        trained(*arguments(tokens, config(tmp_path / "ds_config.json", stage, gradient_accumulation_steps=2), "--steps", 5, "--log_json", log))
        curves[stage] = [losses(log)[step] for step in range(5)]
    # The sum over ranks is the same to the bit in each stage; only the norm, and with it clipping, is added up in another order.
    for stage in range(1, 4):
        assert curves[stage] == pytest.approx(curves[0], abs=2e-6)
    assert len(set(curves[0])) == 5


def test_one_rank_with_and_without_launcher(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json", train_micro_batch_size_per_gpu=4)
    for ranks in (0, 1):
        trained(*arguments(tokens, settings, "--steps", 3, "--log_json", tmp_path / f"{ranks}.jsonl"), ranks=ranks)
    assert losses(tmp_path / "0.jsonl") == losses(tmp_path / "1.jsonl")


def test_only_what_matches_is_trained_and_groups_have_their_own_rates(tmp_path, tokens):
    safetensors = pytest.importorskip("safetensors.numpy")
    groups = tmp_path / "groups.json"
    groups.write_text(json.dumps([{"match": "q_proj", "lr": 0.0, "weight_decay": 0.0}, {"match": ".", "betas": [0.8, 0.9]}]))
    settings = config(tmp_path / "ds_config.json", scheduler=None)
    trained(*arguments(tokens, settings, "--steps", 2, "--train_only", "self_attn", "--parameter_groups", groups, "--dump_weights", tmp_path / "w.safetensors"))
    before = safetensors.load_file(MODEL / "model.safetensors")
    after = safetensors.load_file(tmp_path / "w.safetensors")
    assert set(before) == set(after)
    moved = {name for name in before if (before[name] != after[name]).any()}
    assert moved == {name for name in before if "self_attn" in name and "q_proj" not in name}


# --- resuming


@pytest.mark.parametrize("stage, precision, accumulation", [(3, "bf16", 2), (2, "bf16", 1), (0, "fp32", 1)])
def test_resuming_gives_the_same_bits(tmp_path, tokens, stage, precision, accumulation):
    changes = {"bf16": {"enabled": True}} if precision == "bf16" else {}
    settings = config(tmp_path / "ds_config.json", stage, gradient_accumulation_steps=accumulation, **changes)
    whole, first, second = (tmp_path / f"{name}.jsonl" for name in ("whole", "first", "second"))
    trained(*arguments(tokens, settings, "--steps", 6, "--log_json", whole, "--dump_weights", tmp_path / "whole.safetensors"))
    trained(*arguments(tokens, settings, "--steps", 3, "--log_json", first, "--save", tmp_path / "run"))
    assert latest(tmp_path / "run") == "global_step3"
    result = trained(*arguments(tokens, settings, "--steps", 6, "--log_json", second, "--load", tmp_path / "run", "--dump_weights",
                                tmp_path / "resumed.safetensors"))
    assert "at step 3" in result.stderr
    assert losses(first) | losses(second) == losses(whole)
    assert list(losses(second)) == [3, 4, 5]
    assert [line["lr"] for line in read_log(second)] == [line["lr"] for line in read_log(whole)][3:]
    assert (tmp_path / "whole.safetensors").read_bytes() == (tmp_path / "resumed.safetensors").read_bytes()


def test_dropout_follows_the_seed_and_resumes(tmp_path, tokens):
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    values = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**values, "attention_dropout": 0.5}))
    settings = config(tmp_path / "ds_config.json")
    curves = {}
    for name, seed, more in [("whole", 1, []), ("other", 2, []), ("first", 1, ["--save", tmp_path / "run"]), ("second", 1, ["--load", tmp_path / "run"])]:
        steps = 2 if name == "first" else 4
        trained(*arguments(tokens, settings, "--steps", steps, "--seed", seed, "--log_json", tmp_path / name, *more, model=model))
        curves[name] = losses(tmp_path / name)
    assert curves["whole"][0] != curves["other"][0]
    assert curves["first"] | curves["second"] == curves["whole"]


def test_resuming_with_other_ranks_and_another_stage(tmp_path, tokens):
    whole, second = tmp_path / "whole.jsonl", tmp_path / "second.jsonl"
    settings = config(tmp_path / "ds_config.json", 3)
    trained(*arguments(tokens, settings, "--steps", 6, "--log_json", whole))
    trained(*arguments(tokens, settings, "--steps", 3, "--save", tmp_path / "run"))
    other = config(tmp_path / "other.json", 1, train_micro_batch_size_per_gpu=4)
    trained(*arguments(tokens, other, "--steps", 6, "--log_json", second, "--load", tmp_path / "run"), ranks=1)
    for step in (3, 4, 5):
        assert losses(second)[step] == pytest.approx(losses(whole)[step], abs=1e-5)


def test_resuming_with_another_accumulation_begins_a_whole_one(tmp_path, tokens):
    trained(*arguments(tokens, config(tmp_path / "ds_config.json"), "--steps", 3, "--save", tmp_path / "run"))
    other = config(tmp_path / "other.json", gradient_accumulation_steps=2)
    trained(*arguments(tokens, other, "--steps", 5, "--load", tmp_path / "run", "--log_json", tmp_path / "log"))
    assert [(line["step"], line["skipped"]) for line in read_log(tmp_path / "log")] == [(3, False), (4, False)]
    assert all(line["grad_norm"] > 0 for line in read_log(tmp_path / "log"))


def test_a_named_checkpoint_is_loaded(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json")
    trained(*arguments(tokens, settings, "--steps", 4, "--save", tmp_path / "run", "--save_interval", 2))
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == [".lock", "global_step2", "global_step4", "latest"]
    result = trained(*arguments(tokens, settings, "--steps", 3, "--load", tmp_path / "run", "--load_tag", "global_step2", "--log_json", tmp_path / "log"))
    assert "global_step2 at step 2" in result.stderr
    assert list(losses(tmp_path / "log")) == [2]


def test_checkpoints_that_cannot_be_loaded_are_told(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json")
    missing = train(*arguments(tokens, settings, "--load", tmp_path / "nothing"))
    assert missing.returncode == 1
    assert "E3000" in missing.stderr and str(tmp_path / "nothing") in missing.stderr
    assert not (tmp_path / "nothing").exists()
    trained(*arguments(tokens, settings, "--steps", 1, "--save", tmp_path / "run"))
    absent = train(*arguments(tokens, settings, "--load", tmp_path / "run", "--load_tag", "global_step7"))
    assert absent.returncode == 1
    assert "E3000" in absent.stderr and "global_step7" in absent.stderr
    other = train(*arguments(tokens, settings, "--load", tmp_path / "run", model=GOLDEN / "models" / "tiny-llama"))
    assert other.returncode == 1
    assert "E3003" in other.stderr and "another shape" in other.stderr
    part = tmp_path / "run" / "global_step1" / "rank_00001_of_00002.safetensors"
    part.write_bytes(part.read_bytes()[:-100])
    damaged = train(*arguments(tokens, settings, "--load", tmp_path / "run"))
    assert damaged.returncode == 1
    assert "E3001" in damaged.stderr and part.name in damaged.stderr


def test_a_folder_that_cannot_be_written_is_told(tmp_path, tokens):
    (tmp_path / "file").write_text("")
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json"), "--steps", 1, "--save", tmp_path / "file" / "run"))
    assert result.returncode == 1
    assert "E3002" in result.stderr and str(tmp_path / "file" / "run") in result.stderr


def test_loading_alone_still_saves_elsewhere(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json")
    trained(*arguments(tokens, settings, "--steps", 2, "--save", tmp_path / "one"))
    drawing, weights = tmp_path / "new" / "loss.svg", tmp_path / "other" / "weights.safetensors"
    trained(*arguments(tokens, settings, "--steps", 2, "--load", tmp_path / "one", "--save", tmp_path / "two", "--loss_svg", drawing, "--dump_weights", weights))
    assert latest(tmp_path / "two") == "global_step2"
    assert drawing.exists() and weights.exists()


def test_steps_that_are_not_finite_are_skipped_and_logged(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json", optimizer={"type": "AdamW", "params": {"lr": 1e38}}, scheduler=None)
    log = tmp_path / "log.jsonl"
    result = trained(*arguments(tokens, settings, "--steps", 3, "--log_json", log))
    first, second, third = read_log(log)
    assert first["skipped"] is False
    for line in (second, third):
        assert line["skipped"] is True and line["grad_norm"] is None and line["loss"] is None
    assert "step 2: gradients are not finite" in result.stderr


# --- signals and deaths


def long_run(tmp_path, tokens, *more, log="log.jsonl"):
    return Run(*arguments(tokens, config(tmp_path / "ds_config.json"), "--save", tmp_path / "run", "--log_json", tmp_path / log, *more))


@pytest.mark.parametrize("name", ["TERM", "INT"])
def test_a_signal_saves_and_ends_well(tmp_path, tokens, name):
    log = tmp_path / "log.jsonl"
    with long_run(tmp_path, tokens) as run:
        wait_until(lambda: logged_steps(log) >= 3, "three steps")
        run.launcher.send_signal(getattr(signal, "SIG" + name))
        status, errors = run.end()
        assert status == 0, errors
        assert run.processes() == {}
    steps = logged_steps(log)
    assert f"stopped by a signal after step {steps}" in errors
    assert latest(tmp_path / "run") == f"global_step{steps}"
    # The rest of the run is that of a run never stopped.
    settings = tmp_path / "ds_config.json"
    trained(*arguments(tokens, settings, "--steps", steps + 2, "--load", tmp_path / "run", "--log_json", log))
    trained(*arguments(tokens, settings, "--steps", steps + 2, "--log_json", tmp_path / "whole.jsonl"))
    assert losses(log) == losses(tmp_path / "whole.jsonl")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_ends_the_run_and_leaves_the_last_checkpoint(tmp_path, tokens, rank):
    with long_run(tmp_path, tokens, "--save_interval", 20) as run:
        wait_until(lambda: latest(tmp_path / "run"), "a checkpoint")
        os.kill(run.rank_pid(rank), signal.SIGKILL)
        status, errors = run.end()
        # The launcher's, or that of the other rank where that one was quicker to see it.
        assert status in (128 + signal.SIGKILL, 5)
        assert run.processes() == {}
    assert f"rank {rank} " in errors and ("SIGKILL" in errors or "E2003" in errors)
    saved = latest(tmp_path / "run")
    assert_complete(tmp_path / "run" / saved)
    step = int(saved.removeprefix("global_step"))
    trained(*arguments(tokens, tmp_path / "ds_config.json", "--steps", step + 1, "--load", tmp_path / "run", "--log_json", tmp_path / "after.jsonl"))
    assert list(losses(tmp_path / "after.jsonl")) == [step]


@pytest.mark.parametrize("backend", ["shm", "gloo"])
def test_a_dead_peer_is_named_by_the_others(tmp_path, tokens, backend):
    # Under no launcher, as with srun: nobody tells the survivor but the connection.
    port = str(free_port())
    settings = config(tmp_path / "ds_config.json")
    words = list(map(str, [DS_TRAIN, *arguments(tokens, settings, "--log_json", tmp_path / "log.jsonl")]))
    place = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "DS_COMM_BACKEND": backend}
    ranks = [subprocess.Popen(words, env=environment(RANK=str(rank), **place), stderr=subprocess.PIPE, text=True) for rank in range(2)]
    try:
        wait_until(lambda: logged_steps(tmp_path / "log.jsonl") >= 2, "two steps")
        ranks[1].kill()
        _, errors = ranks[0].communicate(timeout=LIMIT)
        assert ranks[0].returncode == 5, errors
        assert "E2003" in errors and "rank 1 " in errors and "rank 0 of 2" in errors and backend in errors
    finally:
        for rank in ranks:
            rank.kill()
            rank.communicate()


def test_killing_the_launcher_leaves_no_process(tmp_path, tokens):
    with long_run(tmp_path, tokens) as run:
        wait_until(lambda: logged_steps(tmp_path / "log.jsonl") >= 2, "two steps")
        assert len(run.processes()) >= 3
        run.launcher.kill()
        wait_until(lambda: run.processes() == {}, "no process of the run is left")


# --- interrupted saves


def test_a_rank_killed_while_saving_costs_no_checkpoint(tmp_path, tokens):
    """Kills at random moments of saving; each run goes on where `latest` points, and the curve is that of a run never killed."""
    folder, log = tmp_path / "run", tmp_path / "log.jsonl"
    settings = config(tmp_path / "ds_config.json")
    chance = random.Random()
    # What a save leaves on its way, at which a kill is aimed; half of them then wait a moment more.
    moments = [lambda tag: True, lambda tag: (folder / f".tmp.{tag}").exists(), lambda tag: list(folder.glob(f".tmp.{tag}/rank_*")),
               lambda tag: (folder / f".tmp.{tag}" / "index.sqlite").exists() or (folder / tag).exists(), lambda tag: (folder / tag).exists()]
    seen = {}
    kills = interrupted = 0
    while kills < 12 or (interrupted < 2 and kills < 40):
        start = latest(folder)
        more = ["--load", folder] if start else []
        with Run(*arguments(tokens, settings, "--save", folder, "--save_interval", 1, "--log_json", log, *more)) as run:
            wait_until(lambda: latest(folder) != start, "a first checkpoint of this run")
            rank = run.rank_pid(kills % 2)
            aim = f"global_step{int(latest(folder).removeprefix('global_step')) + chance.randrange(2, 5)}"
            wait_until(lambda: moments[kills % len(moments)](aim), "the moment of the kill", pause=0)
            time.sleep(chance.choice([0, chance.random() * 0.005]))
            os.kill(rank, signal.SIGKILL)
            status, errors = run.end()
            assert status != 0
            assert run.processes() == {}, errors
        kills += 1
        interrupted += any(folder.glob(".tmp.*"))
        assert_complete(folder / latest(folder))
        for line in read_log(log):
            assert seen.setdefault(line["step"], line["loss"]) == line["loss"], f"step {line['step']} after kill {kills}"
    assert interrupted >= 2, "hardly a kill fell into a save"
    last = int(latest(folder).removeprefix("global_step"))
    trained(*arguments(tokens, settings, "--steps", last + 2, "--load", folder, "--save", folder, "--log_json", log))
    assert list(folder.glob(".tmp.*")) == []
    assert latest(folder) == f"global_step{last + 2}"
    trained(*arguments(tokens, settings, "--steps", last + 2, "--log_json", tmp_path / "whole.jsonl"))
    assert losses(log) == losses(tmp_path / "whole.jsonl")


KILL_BEFORE_A_CALL = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
static void count(void) {
  static int calls = 0;
  const char* rank = getenv("RANK");
  if (rank && strcmp(rank, "0") == 0 && ++calls == atoi(getenv("KILL_BEFORE_CALL"))) raise(SIGKILL);
}
int fsync(int fd) { count(); return ((int (*)(int))dlsym(RTLD_NEXT, "fsync"))(fd); }
int rename(const char* a, const char* b) { count(); return ((int (*)(const char*, const char*))dlsym(RTLD_NEXT, "rename"))(a, b); }
int renameat2(int c, const char* a, int d, const char* b, unsigned f) {
  count();
  return ((int (*)(int, const char*, int, const char*, unsigned))dlsym(RTLD_NEXT, "renameat2"))(c, a, d, b, f);
}
"""


@pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler")
@pytest.mark.parametrize("same_name", [False, True])
def test_a_death_before_any_step_of_committing_costs_no_checkpoint(tmp_path, tokens, same_name):
    """Rank 0 dies before each fsync and rename in turn, while it saves a new checkpoint or one whose name is taken."""
    (tmp_path / "kill.c").write_text(KILL_BEFORE_A_CALL)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "kill.so", tmp_path / "kill.c", "-ldl"], check=True)
    folder, settings = tmp_path / "run", config(tmp_path / "ds_config.json")
    words = arguments(tokens, settings, "--save", folder, "--steps")
    trained(*words, 1)
    kept = (folder / "global_step1" / "rank_00000_of_00002.safetensors").read_bytes()
    if same_name:
        words = arguments(tokens, config(tmp_path / "other.json", scheduler=None), "--save", folder, "--steps")
    call = 0
    while True:
        call += 1
        assert call < 40
        if not same_name:  # what an earlier death finished counts as an earlier checkpoint
            shutil.rmtree(folder / "global_step2", ignore_errors=True)
            (folder / "latest").write_text("global_step1")
        result = train(*words, 1 if same_name else 2, LD_PRELOAD=str(tmp_path / "kill.so"), KILL_BEFORE_CALL=str(call))
        if result.returncode == 0:
            break
        assert result.returncode in (128 + signal.SIGKILL, 5), result.stderr
        assert_complete(folder / latest(folder))
        if not same_name:
            assert (folder / "global_step1" / "rank_00000_of_00002.safetensors").read_bytes() == kept
    assert call > 8
    assert latest(folder) == ("global_step1" if same_name else "global_step2")
    assert not list(folder.glob(".tmp.*"))
    trained(*arguments(tokens, settings, "--steps", 3, "--load", folder))


def test_leftovers_of_an_interrupted_save_go_with_the_next(tmp_path, tokens):
    folder = tmp_path / "run"
    (folder / ".tmp.global_step1").mkdir(parents=True)
    (folder / ".tmp.global_step1" / "rank_00000_of_00009.safetensors.partial").write_bytes(b"x" * 1000)
    (folder / ".tmp.other" / "deep").mkdir(parents=True)
    trained(*arguments(tokens, config(tmp_path / "ds_config.json"), "--steps", 1, "--save", folder))
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "global_step1", "latest"]
    assert_complete(folder / "global_step1")


def test_a_checkpoint_is_replaced_by_one_of_the_same_name(tmp_path, tokens):
    folder = tmp_path / "run"
    settings = config(tmp_path / "ds_config.json")
    trained(*arguments(tokens, settings, "--steps", 1, "--save", folder))
    first = (folder / "global_step1" / "rank_00000_of_00002.safetensors").read_bytes()
    trained(*arguments(tokens, config(tmp_path / "faster.json", scheduler=None), "--steps", 1, "--save", folder))
    assert (folder / "global_step1" / "rank_00000_of_00002.safetensors").read_bytes() != first
    assert sorted(path.name for path in folder.iterdir()) == [".lock", "global_step1", "latest"]


# --- errors


def test_a_bad_configuration_ends_with_3_and_lists_every_error(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json", 7, train_micro_batch_size_per_gpu="two", gradient_cliping=1.0)
    result = train(*arguments(tokens, settings))
    assert result.returncode == 3
    for word in ("E1100", "zero_optimization.stage", "train_micro_batch_size_per_gpu", "gradient_cliping", "gradient_clipping"):
        assert word in result.stderr
    absent = train(*arguments(tokens, config(tmp_path / "amp.json", stage=0, amp={"enabled": True})))
    assert absent.returncode == 3
    assert "E1200" in absent.stderr and "Apex AMP" in absent.stderr
    unreadable = train(*arguments(tokens, tmp_path / "none.json"))
    assert unreadable.returncode == 1
    assert "none.json" in unreadable.stderr


@pytest.mark.parametrize("words, named", [
    (["--unknown_flag", "1"], "--unknown_flag"),
    (["--save_interval", "-1"], "--save_interval"),
    (["--steps", "many"], "--steps"),
    (["--progress", "dots"], "--progress"),
    (["--eval", "0.9"], "--eval"),
])
def test_usage_errors_end_with_2(tmp_path, tokens, words, named):
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json"), *words), ranks=0)
    assert result.returncode == 2
    assert named in result.stderr


def test_expressions_and_groups_that_cannot_be_read_are_usage_errors(tmp_path, tokens):
    settings, groups = config(tmp_path / "ds_config.json"), tmp_path / "groups.json"
    bad = train(*arguments(tokens, settings, "--train_only", "("), ranks=0)
    assert bad.returncode == 2 and '--train_only: got the expression "("' in bad.stderr
    for text, named in [('{"match": "."}', "a list"), ('[{"math": "."}]', "math"), ("[", "groups.json"), ('[{"match": "q_proj"}]', "none that matches")]:
        groups.write_text(text)
        bad = train(*arguments(tokens, config(tmp_path / "four.json", train_micro_batch_size_per_gpu=4), "--parameter_groups", groups), ranks=0)
        assert bad.returncode == 2 and named in bad.stderr, bad.stderr


def test_missing_arguments_help_and_version():
    missing = train("--model", MODEL, ranks=0)
    assert missing.returncode == 2
    assert "--data" in missing.stderr
    shown = train("--help", ranks=0)
    assert shown.returncode == 0
    assert "Examples:" in shown.stdout and "Exit status" in shown.stdout
    assert train("--version", ranks=0).stdout.startswith("ds_train ")


def test_a_missing_model_is_told(tmp_path, tokens):
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json"), model=tmp_path / "no-model"))
    assert result.returncode == 1
    assert "E4001" in result.stderr and str(tmp_path / "no-model" / "config.json") in result.stderr


def test_data_that_cannot_be_used_is_told(tmp_path, tokens):
    settings = config(tmp_path / "ds_config.json")
    missing = train(*arguments(tmp_path / "none.txt", settings))
    assert missing.returncode == 1
    assert "none.txt" in missing.stderr
    used_up = train(*arguments(write_tokens(tmp_path / "short.safetensors", 2), settings, "--steps", 3))
    assert used_up.returncode == 2
    assert "short.safetensors" in used_up.stderr
    other_rows = train(*arguments(tokens, config(tmp_path / "four.json", train_micro_batch_size_per_gpu=4)))
    assert other_rows.returncode == 2
    assert "train_micro_batch_size_per_gpu" in other_rows.stderr
    too_high = train(*arguments(write_tokens(tmp_path / "high.safetensors", 2, vocabulary=1000), settings))
    assert too_high.returncode == 1
    assert "E5100" in too_high.stderr and "high.safetensors" in too_high.stderr


@pytest.mark.parametrize("rank", [0, 1])
def test_a_peer_that_never_starts_is_a_named_error(tmp_path, tokens, rank):
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json")), ranks=0, RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                   MASTER_PORT=str(free_port()), DEEPSPEED_TIMEOUT="0.05")
    assert result.returncode == 5, result.stderr
    assert "E2001" in result.stderr and f"rank {rank} of 2" in result.stderr


def test_profile_shows_where_the_time_of_every_rank_goes(tmp_path, tokens):
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json"), "--profile", tmp_path / "new" / "trace.json"))
    assert result.returncode == 0, result.stderr
    for word in ("forward", "backward", "optimizer", "gather", "reduce", "wait", "overlapped", "reduce_scatter"):
        assert word in result.stderr
    events = json.loads((tmp_path / "new" / "trace.json").read_text())
    for rank in (0, 1):
        kinds = {event["cat"] for event in events if event["pid"] == rank and event["ph"] == "X"}
        assert {"forward", "backward", "optimizer", "reduce", "wait"} <= kinds
    assert all(event["dur"] >= 0 for event in events if event["ph"] == "X")


def test_a_profile_that_cannot_be_written_is_a_named_error(tmp_path, tokens):
    (tmp_path / "file").write_text("")
    result = train(*arguments(tokens, config(tmp_path / "ds_config.json"), "--profile", tmp_path / "file" / "trace.json"))
    assert result.returncode == 1
    assert "trace.json" in result.stderr


# --- text


@pytest.fixture
def text_run(tmp_path):
    """A model directory with a tokenizer of its own, a text and a jsonl file."""
    tokenizers = pytest.importorskip("tokenizers")
    model = tmp_path / "model"
    shutil.copytree(MODEL, model)
    words = "in the beginning god created heaven and earth now was without form void darkness upon face of deep spirit moved waters said let there be light".split()
    vocabulary = {"<eos>": 0, "?": 1, **{word: 2 + i for i, word in enumerate(dict.fromkeys(words))}}
    assert len(vocabulary) <= VOCABULARY
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="?"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(["<eos>"])
    tokenizer.save(str(model / "tokenizer.json"))
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "<eos>", "tokenizer_class": "PreTrainedTokenizerFast"}))
    (tmp_path / "a.txt").write_text(" ".join(words * 40))
    (tmp_path / "b.jsonl").write_text("".join(json.dumps({"text": " ".join(words[i:] + words[:i])}) + "\n" for i in range(len(words))))
    return model


def test_text_is_trained_evaluated_sampled_and_exported(tmp_path, text_run):
    log, export, svg = tmp_path / "log.jsonl", tmp_path / "export", tmp_path / "loss.svg"
    settings = config(tmp_path / "ds_config.json")
    words = ["--model", text_run, "--data", tmp_path / "a.txt", tmp_path / "b.jsonl", "--deepspeed_config", settings, "--device", "cpu", "--seq", 16, "--cache",
             tmp_path / "cache"]
    result = trained(*words, "--steps", 12, "--eval", 0.1, "--eval_interval", 6, "--eval_batches", 2, "--generate", "in the beginning", "--generate_tokens", 5,
                     "--export", export, "--loss_svg", svg, "--log_json", log)
    assert [line["step"] for line in read_log(log)] == list(range(12))
    assert read_log(log)[-1]["loss"] < read_log(log)[0]["loss"] - 1
    held_out = [line for line in result.stderr.splitlines() if "held-out loss at step" in line]
    assert [line.split("step ")[1].split(":")[0] for line in held_out] == ["0", "6", "12"]
    assert float(held_out[2].split(": ")[1].split()[0]) < float(held_out[0].split(": ")[1].split()[0])
    assert "sample before training: in the beginning|" in result.stderr and "sample after training: in the beginning|" in result.stderr

    drawing = xml.etree.ElementTree.parse(svg).getroot()
    assert drawing.tag == "{http://www.w3.org/2000/svg}svg"
    assert "held out" in "".join(drawing.itertext())

    assert (export / "tokenizer.json").read_bytes() == (text_run / "tokenizer.json").read_bytes()
    check = pytest.importorskip("transformers") and subprocess.run([sys.executable, ROOT / "scripts" / "check_export.py", export], capture_output=True, text=True)
    assert check.returncode == 0, check.stdout + check.stderr


def test_text_starts_over_and_resumes_inside_a_pass(tmp_path, text_run):
    settings = config(tmp_path / "ds_config.json")
    words = ["--model", text_run, "--data", tmp_path / "b.jsonl", "--deepspeed_config", settings, "--device", "cpu", "--seq", 60, "--cache", tmp_path / "cache"]
    whole, parts = tmp_path / "whole.jsonl", tmp_path / "parts.jsonl"
    trained(*words, "--steps", 9, "--log_json", whole)
    trained(*words, "--steps", 4, "--log_json", parts, "--save", tmp_path / "run")
    trained(*words, "--steps", 9, "--log_json", parts, "--load", tmp_path / "run")
    assert losses(parts) == losses(whole)
    assert len(list((tmp_path / "cache").glob("*.bin"))) == 1
    # Without --steps: one pass over the data.
    trained(*words, "--log_json", tmp_path / "pass.jsonl")
    assert 1 <= logged_steps(tmp_path / "pass.jsonl") < 9


def test_a_checkpoint_of_the_real_deepspeed_is_resumed_from(tmp_path):
    case = GOLDEN / "checkpoints" / "stage2-fp32"
    expected = json.loads((case / "expected.json").read_text())["resumed"]["zero-w2"]["steps"]
    words = arguments(case / "tokens.safetensors", case / "ds_config.json", "--load", case / "zero", model=GOLDEN / "models" / "nano-llama")
    # The file of tokens begins with those of the steps before the checkpoint, and a checkpoint of DeepSpeed does not say where its data was.
    result = trained(*words, "--steps", 1, "--log_json", tmp_path / "log")
    assert f"resumed from {case / 'zero' / 'step'} at step {expected[0]['step']}" in result.stderr
    assert "the data begins at its start" in result.stderr


def test_lines_of_ranks_under_the_launcher_name_the_rank_once(tmp_path, tokens):
    result = trained(*arguments(tokens, config(tmp_path / "ds_config.json"), "--steps", 2), DS_LOG_LEVEL="debg")
    lines = [line for line in result.stderr.splitlines() if "[deepspeed]" in line and "[rank" in line]
    assert lines and not any(line.count("[rank") > 1 for line in lines), result.stderr
    # A level that does not exist is told, and changes nothing.
    assert 'DS_LOG_LEVEL: got "debg", allowed debug, info, warning, error' in result.stderr
