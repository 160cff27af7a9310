"""Runs a shell under a terminal of its own, asks for its size, changes it, asks again.

terminal.py COMMAND…: prints both sizes and the exit code.
"""

import fcntl
import os
import pty
import re
import struct
import sys
import termios
import time


def resize(terminal, rows, columns):
    # The kernel tells who is in the foreground there.
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def ask(terminal, expected):
    """Asks until the size is as expected: a change takes its time to arrive."""
    deadline = time.monotonic() + 20
    said = b""
    while time.monotonic() < deadline:
        os.write(terminal, b"echo size: $(stty size)\n")
        while not re.search(rb"size: (\d+ \d+)\r", said):
            said += os.read(terminal, 4096)
        size = re.findall(rb"size: (\d+ \d+)\r", said)[-1].decode()
        if size == expected:
            return size
        said = b""
    return size


child, terminal = pty.fork()
if child == 0:
    # The size must be there before the command looks.
    resize(0, 24, 80)
    os.execvp(sys.argv[1], sys.argv[1:])
print(ask(terminal, "24 80"))
resize(terminal, 50, 132)
print(ask(terminal, "50 132"))
os.write(terminal, b"exit 5\n")
try:
    while os.read(terminal, 4096):
        pass
except OSError:
    pass  # The terminal's other end is closed.
print("left with", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
