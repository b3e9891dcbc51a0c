"""The launcher by real processes: what a user relies on when ranks fail, signals come, or the launcher itself is killed.

The binary is $DEEPSPEED_BIN_DIR/deepspeed, else build/bin/deepspeed of this repository.
"""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

BIN_DIR = Path(os.environ.get("DEEPSPEED_BIN_DIR", Path(__file__).resolve().parents[2] / "build" / "bin"))
DEEPSPEED = BIN_DIR / "deepspeed"
LIMIT = 60  # seconds after which a test is wrong rather than slow

RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES")


def clean_environment(**extra):
    environment = {name: value for name, value in os.environ.items() if name not in RANK_VARIABLES}
    environment["PYTHON"] = sys.executable
    environment.update(extra)
    return environment


def run(*arguments, env=None, **options):
    result = subprocess.run([str(DEEPSPEED), *map(str, arguments)], env=env or clean_environment(), capture_output=True, timeout=LIMIT,
                            stdin=subprocess.DEVNULL, **options)
    # Decoded here, as text=True would turn '\r' into '\n'.
    result.stdout, result.stderr = result.stdout.decode(), result.stderr.decode()
    return result


def start(*arguments, **options):
    return subprocess.Popen([str(DEEPSPEED), *map(str, arguments)], env=clean_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                            text=True, stdin=subprocess.DEVNULL, **options)


def script(folder, name, text):
    path = folder / name
    path.write_text(text)
    path.chmod(0o755)
    return path


def is_alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def wait_until(condition, what):
    end = time.monotonic() + LIMIT
    while time.monotonic() < end:
        if condition():
            return
        time.sleep(0.01)
    pytest.fail(f"did not happen: {what}")


def pids_in(folder, count):
    """Process ids that the ranks wrote into files of `folder`, once `count` of them are complete."""
    def read():
        return [int(path.read_text()) for path in folder.glob("*.pid") if path.read_text().endswith("\n")]
    wait_until(lambda: len(read()) == count, f"{count} processes report their ids")
    return read()


# A rank that tells its id, and that of a child in a session of its own and of a child's child, whose parent is gone.
FAMILY = """#!/bin/sh
cd "$1"
setsid sleep 1000 &
echo $! > $RANK-child.pid
(sh -c 'echo $$ > '$RANK'-orphan.tmp; exec sleep 1000' & )
while [ ! -s $RANK-orphan.tmp ]; do sleep 0.01; done
mv $RANK-orphan.tmp $RANK-orphan.pid
echo $$ > $RANK.pid
"""


# --- start


def test_help_and_version_without_torch():
    result = run("--help")
    assert result.returncode == 0
    assert "Examples:" in result.stdout and "--num_ranks" in result.stdout
    version = run("--version")
    assert version.returncode == 0
    assert re.fullmatch(r"deepspeed \d+\.\d+\.\d+\S*\n", version.stdout)
    libraries = subprocess.run(["ldd", str(DEEPSPEED)], capture_output=True, text=True, check=True).stdout
    assert "torch" not in libraries and "c10" not in libraries


def test_environment_of_each_rank(tmp_path):
    program = script(tmp_path, "show.sh", '#!/bin/sh\nenv > "$1/$RANK"\n')
    assert run("--num_ranks", 3, "--master_addr", "localhost", "--env", "EXTRA=a=b", "--env=OTHER=[x, y]", program, tmp_path).returncode == 0
    ports = set()
    for rank in range(3):
        variables = dict(line.split("=", 1) for line in (tmp_path / str(rank)).read_text().splitlines() if "=" in line)
        expected = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 3, "LOCAL_WORLD_SIZE": 3, "LOCAL_SIZE": 3, "CROSS_RANK": 0,
                    "CROSS_SIZE": 1, "MASTER_ADDR": "localhost", "EXTRA": "a=b", "OTHER": "[x, y]"}
        assert {name: variables.get(name) for name in expected} == {name: str(value) for name, value in expected.items()}
        assert int(variables["OMP_NUM_THREADS"]) >= 1
        ports.add(int(variables["MASTER_PORT"]))
    assert len(ports) == 1


def test_threads_set_by_the_user_stay(tmp_path):
    result = run("-n", 2, "sh", "-c", "echo $OMP_NUM_THREADS", env=clean_environment(OMP_NUM_THREADS="7"))
    assert sorted(result.stdout.splitlines()) == ["[rank 0] 7", "[rank 1] 7"]


def test_default_number_of_ranks():
    assert run("sh", "-c", "echo $WORLD_SIZE", env=clean_environment(CUDA_VISIBLE_DEVICES="")).stdout == "1\n"
    result = run("sh", "-c", "echo $WORLD_SIZE $CUDA_VISIBLE_DEVICES", env=clean_environment(CUDA_VISIBLE_DEVICES="2,0"))
    assert sorted(result.stdout.splitlines()) == ["[rank 0] 2 2,0", "[rank 1] 2 2,0"]
    assert "CUDA_VISIBLE_DEVICES=2,0" in result.stderr


def test_arguments_pass_untouched(tmp_path):
    program = script(tmp_path, "show.sh", "#!/bin/sh\nprintf '<%s>' \"$@\"\necho\n")
    arguments = ["--num_ranks", "9", "-q", "--help", "--a", "x y", "--b=x y", "-c", "", "--", "--version", "$HOME", "*"]
    result = run("--num_ranks", 2, program, *arguments)
    assert result.returncode == 0
    line = "".join(f"<{argument}>" for argument in arguments)
    assert sorted(result.stdout.splitlines()) == [f"[rank {rank}] {line}" for rank in range(2)]
    assert run("-n", 1, "--", "echo", "-n", "x").stdout == "x"


def test_python_scripts_get_their_local_rank(tmp_path):
    program = script(tmp_path, "show.py", "import os, sys\nprint(os.environ['RANK'], sys.argv[1:])\n")
    result = run("--num_ranks", 2, program, "--x", "1")
    assert sorted(result.stdout.splitlines()) == ["[rank 0] 0 ['--local_rank=0', '--x', '1']", "[rank 1] 1 ['--local_rank=1', '--x', '1']"]
    assert run("-n", 1, "--no_local_rank", program, "--x").stdout == "0 ['--x']\n"
    module = run("-n", 1, "--module", "show", "--x", cwd=tmp_path)
    assert module.stdout == "0 ['--local_rank=0', '--x']\n"
    direct = script(tmp_path, "direct.py", "#!/bin/sh\necho direct \"$@\"\n")
    assert run("-n", 1, "--no_python", direct, "--x").stdout == "direct --x\n"


def test_core_binding(tmp_path):
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    code = "import os; print(sorted(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'])"
    result = run("-n", 2, "--bind_cores_to_rank", "--bind_core_list", f"{allowed[1]},{allowed[0]}", sys.executable, "-c", code)
    assert sorted(result.stdout.splitlines()) == [f"[rank 0] [{allowed[1]}] 1", f"[rank 1] [{allowed[0]}] 1"]


def test_ports():
    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = run("-n", 2, "--master_port", port, "true")
        assert result.returncode == 4
        assert str(port) in result.stderr
    # Launchers at the same time keep off each other's port, though no rank listens yet.
    first = start("-n", 2, "sh", "-c", "echo $MASTER_PORT; sleep 1000")
    port = first.stdout.readline().split()[-1]
    other = run("-n", 2, "sh", "-c", "echo $MASTER_PORT")
    first.terminate()
    first.communicate(timeout=LIMIT)
    assert other.returncode == 0
    assert port not in other.stdout


# --- usage errors


@pytest.mark.parametrize("arguments, named", [
    ([], "PROGRAM"),
    (["--num_rank", "2", "true"], "--num_ranks"),
    (["--num_ranks", "0", "true"], "--num_ranks"),
    (["--num_ranks", "two", "true"], "--num_ranks"),
    (["--num_ranks"], "--num_ranks"),
    (["--master_port", "70000", "true"], "--master_port"),
    (["--hostfile", "hosts", "true"], "multi-node launching is not built yet"),
    (["-H", "hosts", "true"], "--hostfile"),
    (["--include", "a:0", "true"], "--include"),
    (["--exclude=a:0", "true"], "--exclude"),
    (["--num_nodes", "2", "true"], "--num_nodes"),
    (["--launcher", "slurm", "true"], "--launcher"),
    (["--autotuning", "run", "true"], "--autotuning"),
    (["--env", "RANK=1", "true"], "RANK"),
    (["--env", "nothing", "true"], "--env"),
    (["--bind_core_list", "0", "true"], "--bind_cores_to_rank"),
    (["--bind_cores_to_rank", "--bind_core_list", "0-x", "true"], "--bind_core_list"),
    (["--module", "--no_python", "x"], "--no_python"),
])
def test_usage_errors_end_with_2(arguments, named):
    result = run(*arguments)
    assert result.returncode == 2
    assert named in result.stderr
    assert result.stdout == ""


def test_program_not_found_ends_with_4(tmp_path):
    for arguments in (["no-such-program-here"], [tmp_path / "missing"], [tmp_path / "missing.py"], [tmp_path]):
        result = run("-n", 2, *arguments)
        assert result.returncode == 4
        assert str(arguments[0]) in result.stderr
    plain = tmp_path / "plain"
    plain.write_text("#!/bin/sh\n")
    assert "not executable" in run(plain).stderr
    broken = script(tmp_path, "broken", "#!/no/such/interpreter\n")
    result = run("-n", 2, broken)
    assert result.returncode == 4
    assert "could not be started" in result.stderr


# --- output


def test_prefixes_keep_streams_and_lines_apart():
    result = run("-q", "-n", 2, "sh", "-c", "printf 'a\\nb'; printf 'e%s\\n' $RANK >&2; printf '\\r\\n\\n'; printf end")
    for rank in range(2):
        lines = [line for line in result.stdout.split("\n") if line.startswith(f"[rank {rank}] ")]
        assert lines == [f"[rank {rank}] {text}" for text in ("a", "b", "", "end")]
    assert sorted(result.stderr.splitlines()) == ["[rank 0] e0", "[rank 1] e1"]


def test_output_is_raw_with_one_rank_or_without_prefix():
    assert run("-q", "-n", 1, "sh", "-c", "printf 'a\\rb'").stdout == "a\rb"
    assert run("-q", "-n", 2, "--no_prefix", "sh", "-c", "printf x").stdout == "xx"


def test_much_output_arrives_whole():
    result = run("-q", "-n", 2, "sh", "-c", "seq 1 50000; seq 1 50000 >&2")
    assert result.returncode == 0
    for text in (result.stdout, result.stderr):
        for rank in range(2):
            prefix = f"[rank {rank}] "
            assert [line[len(prefix):] for line in text.splitlines() if line.startswith(prefix)] == [str(i) for i in range(1, 50001)]


def test_a_progress_bar_overwrites_only_itself():
    code = "[ $RANK = 1 ] && sleep 0.3 && echo text && exit; printf '\\r10%%'; printf '\\r20%%'; sleep 0.6; printf '\\r30%%\\n'"
    shown = run("-q", "-n", 2, "sh", "-c", code).stdout
    assert shown.startswith("[rank 0] 10%\r") or shown.startswith("[rank 1] text\n")
    assert "\n[rank 1] text\n" in "\n" + shown
    assert "[rank 0] 30%\n" in shown


def test_lines_come_when_they_are_written():
    launcher = start("-q", "-n", 2, "sh", "-c", "echo now; exec sleep 1000")
    assert sorted(launcher.stdout.readline() for _ in range(2)) == ["[rank 0] now\n", "[rank 1] now\n"]
    launcher.terminate()
    launcher.communicate(timeout=LIMIT)


def test_a_reader_that_goes_away_ends_the_ranks():
    launcher = start("-q", "-n", 2, "yes")
    launcher.stdout.readline()
    launcher.stdout.close()
    assert launcher.wait(timeout=LIMIT) == 128 + signal.SIGPIPE
    launcher.stderr.close()


def test_a_reader_that_does_not_read_does_not_stop_supervision(tmp_path):
    program = script(tmp_path, "rank.sh", '#!/bin/sh\necho $$ > "$1/$RANK.tmp"; mv "$1/$RANK.tmp" "$1/$RANK.pid"; exec yes\n')
    launcher = start("-q", "-n", 2, program, tmp_path)
    pids = pids_in(tmp_path, 2)
    launcher.terminate()
    wait_until(lambda: not any(map(is_alive, pids)), "the ranks end although nobody reads")
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 128 + signal.SIGTERM


def test_log_files(tmp_path):
    logs = tmp_path / "new" / "logs"
    # Rank 1 fails after rank 0 is done, which otherwise might be stopped before it prints.
    code = f"echo out $RANK; echo err $RANK >&2; [ $RANK = 0 ] && exec touch {tmp_path}/done; while [ ! -e {tmp_path}/done ]; do sleep 0.01; done; exit 1"
    result = run("-n", 2, "--enable_each_rank_log", logs, "sh", "-c", code)
    assert result.returncode == 1
    assert result.stdout == ""
    files = sorted(logs.iterdir())
    assert [re.sub(r"^\d{14}", "", path.name) for path in files] == ["_rank0.log", "_rank1.log"]
    assert [path.read_text() for path in files] == ["out 0\nerr 0\n", "out 1\nerr 1\n"]
    assert str(files[1]) in result.stderr
    impossible = run("-n", 2, "--enable_each_rank_log", files[0] / "below_a_file", "true")
    assert impossible.returncode == 4
    assert str(files[0]) in impossible.stderr


def test_save_pid(tmp_path):
    program = "cat $TMPDIR/*.deepspeed"
    result = subprocess.Popen([str(DEEPSPEED), "-q", "-n", "1", "--save_pid", "sh", "-c", program], env=clean_environment(TMPDIR=str(tmp_path)),
                              stdout=subprocess.PIPE, text=True)
    assert result.communicate(timeout=LIMIT)[0] == str(result.pid)
    assert list(tmp_path.iterdir()) == []


# --- ends


def test_exit_code_of_the_failed_rank_is_passed_on():
    result = run("-n", 3, "sh", "-c", "[ $RANK = 1 ] && exit 7; exec sleep 1000")
    assert result.returncode == 7
    assert "rank 1 " in result.stderr and "exited with code 7" in result.stderr


def test_a_signal_becomes_128_and_its_number():
    result = run("-n", 2, "sh", "-c", "[ $RANK = 1 ] && kill -9 $$; exec sleep 1000")
    assert result.returncode == 137
    assert "rank 1 " in result.stderr and "SIGKILL" in result.stderr
    assert run("-n", 1, "sh", "-c", "kill -SEGV $$").returncode == 128 + signal.SIGSEGV


def test_all_ranks_well_is_0_and_waits_for_the_last(tmp_path):
    result = run("-n", 2, "sh", "-c", f"[ $RANK = 0 ] || {{ sleep 0.5; touch {tmp_path}/late; }}")
    assert result.returncode == 0
    assert (tmp_path / "late").exists()


def test_the_others_end_when_one_fails_even_if_they_do_not_want_to(tmp_path):
    # Ranks that ignore SIGTERM, with children out of their process group: gone when the launcher is.
    program = script(tmp_path, "rank.sh", FAMILY + """
trap '' TERM
if [ $RANK = 2 ]; then
  while [ $(ls *.pid | wc -l) -lt 12 ]; do sleep 0.01; done
  exit 3
fi
while :; do sleep 0.1; done
""")
    launcher = start("-n", 4, program, tmp_path)
    pids = pids_in(tmp_path, 12)
    _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 3
    assert not any(map(is_alive, pids))
    assert "rank 2 " in errors and "exited with code 3" in errors


def test_the_others_can_clean_up_when_one_fails(tmp_path):
    program = script(tmp_path, "rank.sh", """#!/bin/sh
trap 'touch $1/cleaned; exit 0' TERM
touch $1/ready$RANK
if [ $RANK = 1 ]; then while [ ! -e $1/ready0 ]; do sleep 0.01; done; exit 5; fi
while :; do sleep 0.01; done
""")
    assert run("-n", 2, program, tmp_path).returncode == 5
    assert (tmp_path / "cleaned").exists()


def test_what_a_rank_left_behind_ends_with_it(tmp_path):
    program = script(tmp_path, "rank.sh", FAMILY)
    result = run("-n", 2, program, tmp_path)
    assert result.returncode == 0
    assert not any(map(is_alive, pids_in(tmp_path, 6)))


# --- signals


TRAPPING = """#!/bin/sh
trap 'echo got {name} > "$1/$RANK.got"; {then}' {name}
echo $$ > "$1/$RANK.tmp"; mv "$1/$RANK.tmp" "$1/$RANK.pid"
while :; do sleep 0.01; done
"""


@pytest.mark.parametrize("name", ["TERM", "INT", "HUP"])
def test_signals_to_end_reach_every_rank_and_have_time(tmp_path, name):
    # Slower than the 1.5 s after a failure: a rank that saves a checkpoint is given its time, also when another one is already gone.
    program = script(tmp_path, "rank.sh", TRAPPING.format(name=name, then="[ $RANK = 0 ] || sleep 2; echo done > $1/$RANK.done; exit 143"))
    launcher = start("-n", 2, program, tmp_path)
    pids_in(tmp_path, 2)
    launcher.send_signal(getattr(signal, "SIG" + name))
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 143
    assert len(list(tmp_path.glob("*.got"))) == 2
    assert len(list(tmp_path.glob("*.done"))) == 2


def test_ranks_that_end_well_on_a_signal_give_0(tmp_path):
    launcher = start("-n", 2, script(tmp_path, "rank.sh", TRAPPING.format(name="TERM", then="exit 0")), tmp_path)
    pids_in(tmp_path, 2)
    launcher.terminate()
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 0


def test_signals_not_trapped_end_all(tmp_path):
    launcher = start("-n", 2, script(tmp_path, "rank.sh", FAMILY + "sleep 1000 & wait\n"), tmp_path)
    pids = pids_in(tmp_path, 6)
    launcher.terminate()
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 143
    assert not any(map(is_alive, pids))


def test_usr1_is_passed_on_and_ends_nothing(tmp_path):
    launcher = start("-n", 2, script(tmp_path, "rank.sh", TRAPPING.format(name="USR1", then=":")), tmp_path)
    pids_in(tmp_path, 2)
    launcher.send_signal(signal.SIGUSR1)
    wait_until(lambda: len(list(tmp_path.glob("*.got"))) == 2, "both ranks see SIGUSR1")
    assert launcher.poll() is None
    launcher.terminate()
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 143


def test_a_second_signal_kills(tmp_path):
    launcher = start("-n", 2, script(tmp_path, "rank.sh", TRAPPING.format(name="INT", then=":")), tmp_path)
    pids = pids_in(tmp_path, 2)
    launcher.send_signal(signal.SIGINT)
    wait_until(lambda: len(list(tmp_path.glob("*.got"))) == 2, "both ranks see SIGINT")
    time.sleep(0.5)  # two signals in quick succession count as one
    assert all(map(is_alive, pids))
    launcher.send_signal(signal.SIGINT)
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 130
    assert not any(map(is_alive, pids))


def test_the_grace_period_ends(tmp_path):
    launcher = start("-n", 2, "--grace", "0.3", script(tmp_path, "rank.sh", TRAPPING.format(name="TERM", then=":")), tmp_path)
    pids = pids_in(tmp_path, 2)
    launcher.terminate()
    launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 143
    assert not any(map(is_alive, pids))


# --- nothing survives the launcher


@pytest.mark.parametrize("ranks", [1, 3])
def test_killing_the_launcher_leaves_nothing(tmp_path, ranks):
    program = script(tmp_path, "rank.sh", FAMILY + "trap '' TERM HUP INT\nwhile :; do sleep 0.1; done\n")
    launcher = start("-n", ranks, program, tmp_path)
    pids = pids_in(tmp_path, 3 * ranks)
    assert all(map(is_alive, pids))
    launcher.kill()
    wait_until(lambda: not any(map(is_alive, pids)), "ranks, their children and orphans are gone")
    launcher.communicate(timeout=LIMIT)


def test_killing_a_keeper_leaves_nothing(tmp_path):
    program = script(tmp_path, "rank.sh", FAMILY + "trap '' TERM HUP INT\nwhile :; do sleep 0.1; done\n")
    launcher = start("-n", 2, program, tmp_path)
    pids = pids_in(tmp_path, 6)
    rank0 = int((tmp_path / "0.pid").read_text())
    keeper = int(Path(f"/proc/{rank0}/stat").read_text().rpartition(")")[2].split()[1])
    assert keeper != launcher.pid
    os.kill(keeper, signal.SIGKILL)
    _, errors = launcher.communicate(timeout=LIMIT)
    assert launcher.returncode == 137
    assert "rank 0 " in errors
    assert not any(map(is_alive, pids))


def test_earlier_children_of_the_process_are_left_alone(tmp_path):
    # As in a container's start script: a background job, then exec of the launcher in the same process.
    command = f"sleep 1000 & echo $! > {tmp_path}/job.pid; exec {DEEPSPEED} -q -n 2 true"
    result = subprocess.run(["sh", "-c", command], env=clean_environment(), timeout=LIMIT, stdout=subprocess.DEVNULL)
    job = int((tmp_path / "job.pid").read_text())
    survived = is_alive(job)
    os.kill(job, signal.SIGKILL)
    assert result.returncode == 0
    assert survived


@pytest.mark.skipif(shutil.which("timeout") is None, reason="needs timeout(1)")
def test_timeout_sends_its_signal_twice_but_means_it_once(tmp_path):
    program = script(tmp_path, "rank.sh", TRAPPING.format(name="INT", then="sleep 0.5; echo done > $1/$RANK.done; exit 0"))
    command = ["timeout", "-s", "INT", "2", str(DEEPSPEED), "-n", "2", str(program), str(tmp_path)]
    subprocess.run(command, env=clean_environment(), timeout=LIMIT, capture_output=True)
    assert len(list(tmp_path.glob("*.done"))) == 2
