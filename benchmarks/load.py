"""How much of the machine other work took while a system ran.

Two-thread barriers stall when a third process wants a core, serial code does not, so a busy machine changes ratios and not only times.
`with Load() as load:` around a program that has ended by the end of the block (its processes waited for); afterwards
load.cpu_s is the processor time of that program and load.others how many cores other processes and the hypervisor took, on average.
"""
import os
import pathlib
import resource
import time

BUSY = 0.15  # more than this many cores for others: the turn is marked


def machine_seconds():
    """(busy, stolen) processor seconds of the whole machine since its start."""
    fields = [int(value) for value in pathlib.Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    tick = os.sysconf("SC_CLK_TCK")
    user, nice, system, _, _, irq, softirq, steal = fields[:8]
    return (user + nice + system + irq + softirq) / tick, steal / tick


def own_seconds():
    total = 0.0
    for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN):
        usage = resource.getrusage(who)
        total += usage.ru_utime + usage.ru_stime
    return total


class Load:
    def __enter__(self):
        self.begin = (time.monotonic(), own_seconds(), *machine_seconds())
        return self

    def __exit__(self, *_):
        began, own, busy, stolen = self.begin
        busy_now, stolen_now = machine_seconds()
        self.cpu_s = own_seconds() - own
        wall = max(time.monotonic() - began, 1e-9)
        self.others = max(0.0, busy_now - busy - self.cpu_s + stolen_now - stolen) / wall


def note(turns):
    """A sentence for the table from [(name, turn, others)]."""
    busy = [f"{name} (turn {turn}: {others:.2f})" for name, turn, others in turns if others > BUSY]
    if not turns:
        return ""
    if not busy:
        return f"The machine was quiet: other work took less than {BUSY} cores in every run."
    return "Other work took part of the machine, in cores: " + ", ".join(busy) + "."
