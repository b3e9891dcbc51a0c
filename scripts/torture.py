"""Kill training runs while they save, and see that nothing is lost. Figures of `make torture` are in docs/reliability.md.

    torture.py [--points 300] [--ranks 2,4] [--seed N]

Each point starts ds_train where the last one ended, waits for a moment of a save (its folder, a rank's file, the index, the new name, or any), and kills
one rank, all ranks, or the launcher; every second run saves in the background. After each kill: `latest` names a checkpoint whose every byte agrees with
its checksums, no older one is damaged, the losses logged so far are those of all runs before, and no process is left. At the end the run goes on to its
last step, with the losses of one that was never killed. Exit codes: 0 nothing lost, 1 something was, 2 usage.
"""
import argparse
import collections
import json
import os
import pathlib
import random
import signal
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests" / "process"))
import training_runs as runs  # noqa: E402

VICTIMS = ("a rank", "all ranks", "the launcher")


def moments(folder):
    """What a save leaves on its way: each a test of the tag that is being saved."""
    temporary = lambda tag: folder / f".tmp.{tag}"  # noqa: E731
    return {
        "any": lambda tag: True,
        "its folder": lambda tag: temporary(tag).exists(),
        "a file of a rank": lambda tag: any(temporary(tag).glob("rank_*")),
        "the index": lambda tag: (temporary(tag) / "index.sqlite").exists() or (folder / tag).exists(),
        "the new name": lambda tag: (folder / tag).exists(),
    }


def verify_all(folder):
    """(tags that verify, what ds_checkpoint says of the others)."""
    listed = json.loads(subprocess.run([runs.DS_CHECKPOINT, "ls", folder, "--json"], capture_output=True, text=True, check=True).stdout)
    result = subprocess.run([runs.DS_CHECKPOINT, "verify", folder, "--all"], capture_output=True, text=True)
    return [entry["tag"] for entry in listed], result.stdout if result.returncode else ""


class Torture:
    def __init__(self, work, ranks, chance):
        self.ranks, self.chance = ranks, chance
        self.folder, self.log = work / f"run{ranks}", work / f"log{ranks}.jsonl"
        self.config = runs.config(work / f"config{ranks}.json")
        self.tokens = runs.write_tokens(work / f"tokens{ranks}.safetensors", 4000, world=ranks)
        self.seen = {}
        self.counts = collections.Counter()

    def words(self, *more):
        return runs.arguments(self.tokens, self.config, "--log_json", self.log, *more)

    def point(self, number):
        start = runs.latest(self.folder)
        background = number % 2 == 1
        more = ["--load", self.folder] if start else []
        more += ["--async_save"] if background else []
        victim = VICTIMS[number // 2 % 3]
        name, moment = self.chance.choice(list(moments(self.folder).items()))
        with runs.Run(*self.words("--save", self.folder, "--save_interval", 1, "--keep", 4, *more), ranks=self.ranks) as run:
            runs.wait_until(lambda: runs.latest(self.folder) != start, "a first checkpoint of this run")
            pids = [run.rank_pid(rank) for rank in range(self.ranks)]
            aim = f"global_step{int(runs.latest(self.folder).removeprefix('global_step')) + self.chance.randrange(1, 4)}"
            runs.wait_until(lambda: moment(aim), f"{name} of {aim}", pause=0)
            time.sleep(self.chance.choice([0, self.chance.random() * 0.005]))
            victims = {"a rank": [self.chance.choice(pids)], "all ranks": pids, "the launcher": [run.launcher.pid]}[victim]
            for pid in victims:
                os.kill(pid, signal.SIGKILL)
            run.end()
            runs.wait_until(lambda: run.processes() == {}, "no process of the run is left")
        interrupted = any(self.folder.glob(".tmp.*"))
        self.counts["points"] += 1
        self.counts["inside a save"] += interrupted
        self.counts[f"killed: {victim}"] += 1
        self.counts["background"] += background
        self.check()

    def check(self):
        tags, problems = verify_all(self.folder)
        if problems or runs.latest(self.folder) not in tags:
            self.counts["lost"] += 1
            print(f"latest {runs.latest(self.folder)}, there {tags}\n{problems}", flush=True)
        for line in runs.read_log(self.log):
            if self.seen.setdefault(line["step"], line["loss"]) != line["loss"]:
                self.counts["wrong losses"] += 1
                print(f"step {line['step']}: {line['loss']}, before {self.seen[line['step']]}", flush=True)

    def finish(self):
        """Goes on to the end, and compares with a run that was never killed."""
        last = int(runs.latest(self.folder).removeprefix("global_step")) + 2
        runs.trained(*self.words("--save", self.folder, "--load", self.folder, "--steps", last), ranks=self.ranks)
        whole = self.log.with_name(f"whole{self.ranks}.jsonl")
        runs.trained(*runs.arguments(self.tokens, self.config, "--log_json", whole, "--steps", last), ranks=self.ranks)
        self.counts["steps"] += last
        self.counts["wrong losses"] += runs.losses(self.log) != runs.losses(whole)
        self.counts["left over"] += any(self.folder.glob(".tmp.*"))


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--points", type=int, default=300)
    parser.add_argument("--ranks", default="2,4")
    parser.add_argument("--seed", type=int, default=None)
    options = parser.parse_args()
    worlds = [int(word) for word in options.ranks.split(",")]
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    print(f"seed {seed}", flush=True)
    total = collections.Counter()
    with tempfile.TemporaryDirectory() as work:
        for world in worlds:
            torture = Torture(pathlib.Path(work), world, random.Random(seed + world))
            for number in range(options.points // len(worlds)):
                torture.point(number)
                if (number + 1) % 50 == 0:
                    print(f"{world} ranks: {dict(torture.counts)}", flush=True)
            torture.finish()
            print(f"{world} ranks: {dict(torture.counts)}", flush=True)
            total += torture.counts
    print(f"all: {dict(total)}; lost {total['lost']}, wrong losses {total['wrong losses']}, left over {total['left over']}")
    return 1 if total["lost"] or total["wrong losses"] or total["left over"] else 0


if __name__ == "__main__":
    sys.exit(main())
