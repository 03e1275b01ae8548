"""The line between a process and the one that started it: cut it and the child ends too.

Owns the kernel's parent-death signal and the environment that is handed down. Promises that a process which called
`die_with_parent` does not outlive its parent, however that one ended, kill -9 included. Does not know what the
processes do.

Danger: the kernel sends the signal when the THREAD that started the child ends, not when the parent's last thread
does. Start processes from the main thread only.
"""

from __future__ import annotations

import ctypes
import os
import signal
import threading

PARENT = "TIDEMILL_PARENT_PID"
"""Names the process that starts whoever inherits this variable."""
EXIT_ORPHANED = 137
"""What a shell shows for a process killed by signal 9, the other way in which an orphan ends."""
PR_SET_PDEATHSIG = 1  # <linux/prctl.h>


def die_with_parent() -> None:
    """Binds this process to the one that started it; to be called first thing, before slow imports where possible.

    Does nothing in a process that was started by hand: that one may outlive its shell. Exits at once, without
    cleaning up, if the parent is gone already.
    """
    me, parent = str(os.getpid()), os.environ.get(PARENT, "")
    if parent == me:
        return  # a second call: the first one has done it
    os.environ[PARENT] = me  # what this process starts is bound to this process
    if not parent:
        return
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0):
        code = ctypes.get_errno()
        raise OSError(code, f"prctl(PR_SET_PDEATHSIG): {os.strerror(code)}")
    # The parent may have died before the signal was asked for: then nobody sends it.
    if str(os.getppid()) != parent:
        os._exit(EXIT_ORPHANED)


def child_environment() -> dict[str, str]:
    """The environment of a process that the calling one is about to start, from its main thread.

    One compute thread: two OpenMP threads on two busy cores ran small products 140 times slower than one.
    """
    if threading.current_thread() is not threading.main_thread():
        raise RuntimeError("processes are started from the main thread: they die with the thread that started them")
    return os.environ | {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
        PARENT: str(os.getpid()),
    }
