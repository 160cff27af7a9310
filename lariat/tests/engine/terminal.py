"""Runs a shell under a terminal of its own, asks for its size, changes it, asks again.

terminal.py COMMAND…: prints both sizes and the exit code.
"""

import fcntl
import os
import pty
import re
import select
import struct
import sys
import termios
import time


def resize(terminal, rows, columns):
    # The kernel tells who is in the foreground there.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def answer(terminal):
    """The size that the shell tells, or nothing if it tells none for a second."""
    said = b""
    while select.select([terminal], [], [], 1)[0]:
        said += os.read(terminal, 4096)
        if sizes := re.findall(rb"size: (\d+ \d+)\r", said):
            return sizes[-1].decode()
    return None


def ask(terminal, rows, columns):
    """Asks until the size is as expected: a change takes its time to arrive.

    The docker command misses what comes while it starts, a question or a change. So both come again,
    the change by way of another size: the kernel tells nobody of a change that is none.
    """
    expected = f"{rows} {columns}"
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        os.write(terminal, b"echo size: $(stty size)\n")
        size = answer(terminal)
        if size == expected:
            break
        resize(terminal, rows, columns + 1)
        resize(terminal, rows, columns)
    return size


child, terminal = pty.fork()
if child == 0:
    # The size must be there before the command looks.
    resize(0, 24, 80)
    os.execvp(sys.argv[1], sys.argv[1:])
print(ask(terminal, 24, 80))
resize(terminal, 50, 132)
print(ask(terminal, 50, 132))
os.write(terminal, b"exit 5\n")
try:
    while os.read(terminal, 4096):
        pass
except OSError:
    pass  # The terminal's other end is closed.
print("left with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
