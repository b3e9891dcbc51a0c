"""Measure our engine beside the peers, in one run, with the same model, tokens and settings.

    compare.py [--rows tiny,small,...,optimizer,...] [--systems all|ours|peers|NAME,...] [--repeat 2] [--json FILE] [--markdown FILE]

Systems take turns (A B C, then C B A, ...), so that a slow spell of the machine meets all of them; --repeat counts the turns. A ratio is taken
within a turn and says how many times better ours is (above 1: ours is faster, or smaller). Losses are compared before times: a system
whose losses differ from the first system's by more than 1e-3 fails the run. Rows of one operation (optimizer, small_tensors, all_reduce, zero_path,
loss) are those of micro.py. Exit codes: 0 ok, 1 a run failed or losses differ, 2 usage.
"""
import argparse
import json
import pathlib
import statistics
import sys
import time

import load
import measure
import micro

LOSS_TOLERANCE = 1e-3
BF16_TOLERANCE = 5e-2  # the peers round in other places
ROWS = [shape for shape in measure.SHAPES if shape != "warm"]

# What the table shows: row, measure, unit, ours, peer ("best": the best peer of each turn). Lower is better but for tokens/s.
TABLE = ([("tiny", "step_ms", "ms per step, 0.9 M, 32 tokens", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2", "ddp")] +
         [("small", "step_ms", "ms per step, 33.7 M, 32 tokens", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2", "ddp")] +
         [("throughput", "tokens_per_s", "tokens/s, 33.7 M, 1024 tokens per rank", ours, "best") for ours in measure.OURS] +
         [("small", "peak_mb", "peak MB of a rank, 33.7 M", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2")] +
         [("deep", "step_ms", "ms per step, 48 blocks of width 64", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2", "ddp")] +
         [("bf16", "tokens_per_s", "tokens/s in bf16, 33.7 M, 1024 tokens per rank", ours, "best") for ours in measure.OURS] +
         [("smol", "tokens_per_s", "tokens/s, SmolLM2-135M, 256 tokens per rank", "ours-3", peer) for peer in ("deepspeed-3", "ddp")] +
         [("memory", "job_mb", "peak MB of both ranks, 290 M", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2")] +
         [("tiny", "start_s", "s from launcher to end of first step, 0.9 M", "ours-3", peer) for peer in ("deepspeed-3", "fsdp2", "ddp")])
HIGHER_IS_BETTER = {"tokens_per_s"}


def figures(result, shape):
    """The measures of one run."""
    _, micro_batch, seq, _, warm = measure.SHAPES[shape]
    timed = result["seconds"][warm:]
    return {"step_ms": statistics.median(timed) * 1e3, "tokens_per_s": micro_batch * seq * measure.WORLD * len(timed) / sum(timed),
            "peak_mb": result["peak_mb"], "job_mb": result["job_mb"], "start_s": result["start_s"], "others": result["others"]}


def loss_difference(a, b):
    return max(abs(x - y) for x, y in zip(a, b, strict=True))


def spread(values):
    return min(values), statistics.median(values), max(values)


def peer_value(turn, name, key):
    """A turn's value of the peer `name`, or of the best of all peers that ran; None when it did not run."""
    if name != "best":
        return turn[name][key] if name in turn else None
    values = [turn[peer][key] for peer in measure.PEERS if peer in turn]
    return (max if key in HIGHER_IS_BETTER else min)(values) if values else None


def table(turns):
    """Rows {measure, ours, peer, ours_value, peer_value, ratio: (min, median, max)} from turns[shape] = [{system: figures}]."""
    rows = []
    for shape, key, title, ours, peer in TABLE:
        pairs = [(turn[ours][key], peer_value(turn, peer, key)) for turn in turns.get(shape, []) if ours in turn]
        pairs = [pair for pair in pairs if pair[1] is not None]
        if not pairs:
            continue
        ratios = [a / b if key in HIGHER_IS_BETTER else b / a for a, b in pairs]
        rows.append({"measure": title, "ours": ours, "peer": peer, "ours_value": statistics.median(a for a, _ in pairs),
                     "peer_value": statistics.median(b for _, b in pairs), "ratio": spread(ratios)})
    return rows


def markdown(rows, turns, about):
    lines = [about, "", "| measure | ours | | peer | | times better: min / median / max |", "|---|---|---|---|---|---|"]
    for row in rows:
        lines.append(f"| {row['measure']} | {row['ours']} | {row['ours_value']:.4g} | {row['peer']} | {row['peer_value']:.4g} | "
                     + " / ".join(f"{value:.2f}" for value in row["ratio"]) + " |")
    lines += ["", "| row | system | ms per step | tokens/s | peak MB of a rank | peak MB of the job | start s |", "|---|---|---|---|---|---|---|"]
    for shape, all_turns in turns.items():
        for system in all_turns[0]:
            middle = {key: statistics.median(turn[system][key] for turn in all_turns) for key in all_turns[0][system]}
            lines.append(f"| {shape} | {system} | {middle['step_ms']:.1f} | {middle['tokens_per_s']:.0f} | {middle['peak_mb']:.0f} | "
                         f"{middle['job_mb'] or float('nan'):.0f} | {middle['start_s']:.2f} |".replace("nan", ""))
    lines += ["", load.note([(f"{shape} {system}", turn + 1, found["others"]) for shape, all_turns in turns.items()
                             for turn, this_turn in enumerate(all_turns) for system, found in this_turn.items()])]
    return "\n".join(lines) + "\n"


def choose(text):
    groups = {"all": measure.OURS + measure.PEERS, "ours": measure.OURS, "peers": measure.PEERS}
    chosen = []
    for name in text.split(","):
        if name not in groups and name not in groups["all"]:
            raise argparse.ArgumentTypeError(f"got '{name}', allowed {', '.join([*groups, *groups['all']])}")
        chosen += groups.get(name, [name])
    return list(dict.fromkeys(chosen))


def choose_rows(text):
    for name in text.split(","):
        if name not in ROWS and name not in micro.ROWS:
            raise argparse.ArgumentTypeError(f"got '{name}', allowed {', '.join([*ROWS, *micro.ROWS])}")
    return text.split(",")


def measure_row(shape, systems, repeat):
    """Turns of one row: a list of {system: figures}."""
    all_turns, reference = [], None
    for turn in range(repeat):
        this_turn = {}
        for system in systems if turn % 2 == 0 else reversed(systems):
            result = measure.run(system, shape)
            reference = reference or (system, result["losses"])
            difference = loss_difference(result["losses"], reference[1])
            allowed = BF16_TOLERANCE if shape in measure.BF16 else LOSS_TOLERANCE
            if difference > allowed:
                raise measure.RunFailed(f"{shape}: losses of {system} and {reference[0]} differ by {difference:.3g}, allowed {allowed}")
            this_turn[system] = found = figures(result, shape)
            print(f"[bench] {shape} {turn + 1}/{repeat} {system}: {found['step_ms']:.1f} ms, {found['tokens_per_s']:.0f} tokens/s, "
                  f"{found['job_mb'] or found['peak_mb']:.0f} MB, start {found['start_s']:.2f} s, others {found['others']:.2f}, "
                  f"losses within {difference:.1g}", file=sys.stderr, flush=True)
        all_turns.append({system: this_turn[system] for system in systems})
    return all_turns


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=choose_rows, default=[*ROWS, *micro.ROWS])
    parser.add_argument("--systems", type=choose, default=choose("all"))
    parser.add_argument("--repeat", type=int, default=2)
    parser.add_argument("--json", type=pathlib.Path, default=measure.ROOT / "runs" / "bench.json")
    parser.add_argument("--markdown", type=pathlib.Path, help="also write the table to this file")
    args = parser.parse_args()
    if args.repeat < 1:
        parser.error(f"--repeat: got {args.repeat}, allowed 1 or more")
    turns, micro_turns = {}, {}
    sides = [side for side, names in (("ours", measure.OURS), ("peers", measure.PEERS)) if set(names) & set(args.systems)]
    try:
        for system in args.systems if set(args.rows) & set(ROWS) else []:
            print(f"[bench] warming up {system}", file=sys.stderr, flush=True)
            measure.run(system, "warm")
        for row in args.rows:
            if row in micro.ROWS:
                micro_turns[row] = micro.measure_row(row, sides, args.repeat)
            else:
                turns[row] = measure_row(row, args.systems, args.repeat)
    except measure.RunFailed as error:
        print(f"[bench] error: {error}", file=sys.stderr)
        return 1
    rows = table(turns)
    about = (f"{measure.machine()}; 2 ranks, one thread each, AdamW, clip 1.0, fp32 but for the rows in bf16; "
             f"ours between ranks: {measure.backend()}, peers: Gloo; {args.repeat} turns; "
             f"{time.strftime('%Y-%m-%d')}.")
    text = markdown(rows, turns, about) if turns else about + "\n"
    if micro_turns:
        micro_rows = micro.table(micro_turns)
        text += f"\nOne operation, medians of {micro.REPEAT} repetitions or more:\n\n" + micro.markdown(micro_rows, micro_turns)
        rows += micro_rows
    print(text)
    args.json.parent.mkdir(parents=True, exist_ok=True)
    args.json.write_text(json.dumps({"about": about, "rows": rows, "turns": turns, "micro_turns": micro_turns}, indent=1) + "\n")
    if args.markdown:
        args.markdown.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
