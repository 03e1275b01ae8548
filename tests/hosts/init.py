"""The first process of a host: makes its world, says `ready`, then buries whoever dies there. Standard library alone.

`init.py NAME WORLD HOUSE [HIDDEN ...]`, in fresh namespaces. What it makes: its own hostname and loopback; WORLD as /tmp, the one
place that can be written; everything else read-only; each HIDDEN folder empty. When it is killed, the kernel ends all
processes of the host.
"""

import os
import signal
import socket
import subprocess
import sys


def mount(*arguments: str) -> None:
    subprocess.run(("mount", *arguments), check=True)


def make_world(world: str, house: str, hidden: list[str]) -> None:
    inside = os.path.join(world, os.path.relpath(house, "/tmp"))
    in_tmp = os.path.commonpath((house, "/tmp")) == "/tmp"
    if in_tmp:  # the world will cover it: take it along
        os.makedirs(inside)
        mount("--bind", house, inside)
    for folder in hidden:
        mount("-t", "tmpfs", "-o", "mode=755", "hidden", folder.replace(house, inside, 1) if in_tmp else folder)
    mount("--rbind", world, "/tmp")
    mount("-t", "tmpfs", "shm", "/dev/shm")
    for place in ("/", *((house,) if in_tmp else ())):
        mount("-o", "remount,bind,ro", place)


def bury() -> None:
    """All who are dead by now: signals that came together count as one."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def main() -> None:
    name, world, house, *hidden = sys.argv[1:]
    socket.sethostname(name)
    subprocess.run(("ip", "link", "set", "lo", "up"), check=True)
    make_world(world, house, hidden)
    print("ready", flush=True)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
    while True:
        signal.sigwait({signal.SIGCHLD})
        bury()


if __name__ == "__main__":
    main()
