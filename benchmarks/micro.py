"""The micro rows of compare.py: one operation each, our build (build/bin/micro_bench) beside the peers (micro_peers.py).

Each side is a program that repeats the operation REPEAT times and prints every time; sides take turns (ours peers, peers ours, ...). A turn's
figure is the median of its repetitions, and ratios are taken within a turn. Checks are compared before times. What the machine could do at best
(bytes that must move at the copy rate, or multiplications at the rate of a large product) is measured in our program of the same turn.
"""
import json
import os
import signal
import statistics
import subprocess
import sys

import load
import measure

REPEAT = 7
TIME_LIMIT = 900  # seconds for one side of one turn
CHECK_TOLERANCE = 1e-5  # relative
MIB = 1 << 20

# name -> (threads per rank, ranks)
ROWS = {"optimizer": (2, 1), "small_tensors": (2, 1), "all_reduce": (1, 2), "zero_path": (1, 2), "loss": (2, 1), "checkpoint": (1, 2)}

# Bytes that must move, per rank, by the title of the row: 28 per parameter; an all-reduce reads and writes 2.5 times its size when ranks read each
# other's memory; a reduce-scatter 1.5 times, and a gather nothing when parameters are mapped.
LIMIT_BYTES = {"optimizer + clip, 100 M in one tensor": 28 * 100_000_000, "optimizer + clip, 4096 tensors x 1024": 28 * 4096 * 1024,
               "all-reduce, 64 KiB": 2.5 * 65536, "all-reduce, 1 MiB": 2.5 * MIB, "all-reduce, 32 MiB": 80 * MIB,
               "all-reduce, 256 MiB": 640 * MIB, "reduce-scatter + all-gather, 100 MiB": 150 * MIB}
COPY = "copy 2 x 256 MiB"
CHANGE = "change 256 MiB in place"  # a copy also reads what it overwrites on some machines: the faster of the two is the limit
RATES = {COPY: 512 * MIB, CHANGE: 512 * MIB}  # bytes moved
PRODUCT = "product 2048 x 512 x 8192"
LOSS = "linear + cross entropy, 2048 tokens, vocabulary 131072"


def command(side, row):
    ranks = ROWS[row][1]
    if side == "ours":
        line = [measure.ROOT / "build" / "bin" / "micro_bench", row, REPEAT]
        if ranks > 1:
            line = [measure.ROOT / "build" / "bin" / "deepspeed", "--num_ranks", ranks, "--master_port", measure.free_port(), *line]
    else:
        line = [measure.PEER_PYTHON, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", measure.free_port(),
                measure.ROOT / "benchmarks" / "micro_peers.py", row, REPEAT]
    return [str(part) for part in line]


def parse(output):
    """The lines {row, system, ms, check, extra_mb} that a side printed; a line with "error" says why a system has no figure."""
    return [json.loads(line.split("MICRO ", 1)[1]) for line in output.splitlines() if "MICRO {" in line]


def run(side, row):
    if side == "peers" and not measure.PEER_PYTHON.exists():
        raise measure.RunFailed(f"{row}: the peers need .venv-peers: run make bench-peers")
    line = command(side, row)
    env = dict(measure.environment(), OMP_NUM_THREADS=str(ROWS[row][0]))
    process = subprocess.Popen(line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=env,
                               cwd=measure.ROOT, start_new_session=True)
    try:
        with load.Load() as measured:
            output, _ = process.communicate(timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise measure.RunFailed(f"{row}: {side} did not end within {TIME_LIMIT} s") from None
    found = parse(output)
    if process.returncode or not found:
        raise measure.RunFailed(f"{row}: {side} ended with {process.returncode}: {' '.join(line)}\n{output[-3000:]}")
    for entry in found:
        entry["others"] = measured.others
    return found


def compare_checks(lines):
    """Raises RunFailed when systems disagree about the result of a row."""
    first = {}
    for line in lines:
        if "error" in line or line["row"] in (*RATES, PRODUCT):
            continue
        expected = first.setdefault(line["row"], line)
        if abs(line["check"] - expected["check"]) > CHECK_TOLERANCE * abs(expected["check"]):
            raise measure.RunFailed(f"{line['row']}: results of {line['system']} and {expected['system']} differ: "
                                    f"{line['check']!r}, {expected['check']!r}")


def measure_row(row, sides, turns):
    """Lines of each turn."""
    all_turns = []
    for turn in range(turns):
        lines = []
        for side in sides if turn % 2 == 0 else reversed(sides):
            found = run(side, row)
            lines += found
            for line in found:
                text = line["error"] if "error" in line else f"{statistics.median(line['ms']):.4g} ms, at best {min(line['ms']):.4g} ms"
                print(f"[bench] {turn + 1}/{turns} {line['row']}, {line['system']}: {text}", file=sys.stderr, flush=True)
        compare_checks(lines)
        all_turns.append(lines)
    return all_turns


def limit_ms(title, lines):
    """The least time that `title` can take at the rates measured beside it, or None."""
    times = {line["row"]: statistics.median(line["ms"]) for line in lines if line["row"] in (*RATES, PRODUCT)}
    rates = [RATES[row] / ms for row, ms in times.items() if row in RATES]
    if title in LIMIT_BYTES and rates:
        return LIMIT_BYTES[title] / max(rates)
    if title == LOSS and PRODUCT in times:
        return 3 * 131072 / 8192 * times[PRODUCT]
    return None


def spread(values):
    return min(values), statistics.median(values), max(values)


def table(turns):
    """Rows {measure, ours, peer, ours_value, peer_value, ratio, of_limit} from turns[row] = [lines of a turn]."""
    pairs = {}  # (measure, peer) -> [(ours, peer, fraction of the limit)]
    for all_turns in turns.values():
        for lines in all_turns:
            ours = {line["row"]: line for line in lines if line["system"] == "ours"}
            for line in lines:
                own = ours.get(line["row"])
                if line is own or own is None or "error" in line:
                    continue
                a, b, least = statistics.median(own["ms"]), statistics.median(line["ms"]), limit_ms(line["row"], lines)
                pairs.setdefault((f"ms, {line['row']}", line["system"]), []).append((a, b, least / a if least else None))
                if line["extra_mb"] > 0:
                    entry = (max(own["extra_mb"], 1.0), line["extra_mb"], None)
                    pairs.setdefault((f"extra MB at peak, {line['row']}", line["system"]), []).append(entry)
    rows = []
    for (title, peer), values in pairs.items():
        fractions = [fraction for _, _, fraction in values if fraction]
        rows.append({"measure": title, "ours": "ours", "peer": peer, "ours_value": statistics.median(a for a, _, _ in values),
                     "peer_value": statistics.median(b for _, b, _ in values), "ratio": spread([b / a for a, b, _ in values]),
                     "of_limit": statistics.median(fractions) if fractions else None})
    return rows


def markdown(rows, turns):
    lines = ["| measure | ours | peer | | times better: min / median / max | ours, % of limit |", "|---|---|---|---|---|---|"]
    for row in rows:
        limit = f"{100 * row['of_limit']:.0f}" if row["of_limit"] else ""
        lines.append(f"| {row['measure']} | {row['ours_value']:.4g} | {row['peer']} | {row['peer_value']:.4g} | "
                     + " / ".join(f"{value:.2f}" for value in row["ratio"]) + f" | {limit} |")
    missing = {f"{line['row']}, {line['system']}: {line['error']}" for all_turns in turns.values() for found in all_turns
               for line in found if "error" in line}
    quiet = load.note(sorted({(f"{row} {'ours' if line['system'] == 'ours' else 'peers'}", turn + 1, line["others"]) for row, all_turns in turns.items()
                              for turn, found in enumerate(all_turns) for line in found if "others" in line}))
    return "\n".join(lines + ["", quiet] + [f"No figure: {text}" for text in sorted(missing)]) + "\n"
