"""Signals as a program started by hand has them: under nohup SIGHUP is ignored, in a shell's background SIGINT, and every child would inherit that."""
import signal

for number in (signal.SIGHUP, signal.SIGINT):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, signal.SIG_DFL)
