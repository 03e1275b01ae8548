"""What the kernel says of a process on this machine: read from /proc, by pid, and checked against the process's name."""

from __future__ import annotations

from pathlib import Path

from tools.observe.silence import ProcessLook

PROC = Path("/proc")


def look(pid: int, name: str = "") -> ProcessLook:
    """`name` has to stand in the command line, else the pid has gone to another program."""
    if pid <= 0:
        return ProcessLook.UNKNOWN
    try:
        stat = (PROC / str(pid) / "stat").read_text()
        command = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace")
    except OSError:
        return ProcessLook.GONE if PROC.is_dir() else ProcessLook.UNKNOWN
    letter = stat.rpartition(")")[2].split()[0]
    if letter in ("Z", "X"):
        return ProcessLook.GONE
    if name and name not in command:
        return ProcessLook.GONE
    return ProcessLook.STOPPED if letter in ("T", "t") else ProcessLook.RUNS
