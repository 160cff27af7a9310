"""Runs a command under a terminal of its own, and does with it what standard input says.

terminal.py ROWS COLUMNS COMMAND…: each line of input is a step.

  await TEXT      until the screen shows it
  absent TEXT     until the screen does not show it
  type KEYS       as Python writes a string: \\x03, \\x1b[B
  resize R C
  signal NAME     to the command
  screen          prints it, between two lines of dashes
  leave           waits for its end; prints the exit code, and whether the terminal is as it was

The screen is a small one: it knows what `lariat top` says to a terminal, and fails at anything else.
"""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time

PATIENCE = 20


class Screen:
    def __init__(self, rows, columns):
        self.resize(rows, columns)
        self.alternate, self.cursor = False, True

    def resize(self, rows, columns):
        self.rows, self.columns = rows, columns
        self.clear()

    def clear(self):
        self.cells = [[" "] * self.columns for _ in range(self.rows)]
        self.at = (0, 0)

    def feed(self, text):
        for control, char in re.findall("\x1b\\[([?0-9;]*[A-Za-z])|(.)", text, re.S):
            if char:
                row, column = self.at
                if row < self.rows and column < self.columns:
                    self.cells[row][column] = char
                self.at = (row, column + 1)
            elif control.endswith("H"):
                row, _, column = (control[:-1] or "1;1").partition(";")
                self.at = (int(row) - 1, int(column or 1) - 1)
            elif control == "2J":
                self.clear()
            elif control in ("?1049h", "?1049l"):
                self.alternate = control[-1] == "h"
            elif control in ("?25h", "?25l"):
                self.cursor = control[-1] == "h"
            elif control not in ("?7h", "?7l") and not control.endswith("m"):
                sys.exit(f"an unknown control: {control!r}")

    def text(self):
        return "\n".join("".join(line).rstrip() for line in self.cells)


def size(terminal, rows, columns):
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


rows, columns = int(sys.argv[1]), int(sys.argv[2])
screen = Screen(rows, columns)
outside, inside = pty.openpty()
size(inside, rows, columns)
before = termios.tcgetattr(inside)
child = os.fork()
if child == 0:
    os.close(outside)
    os.login_tty(inside)
    os.execvp(sys.argv[3], sys.argv[3:])
# Ours stays open: the terminal is looked at when the command has left.
pending = b""


def read(patience):
    """Takes what the command has drawn. False if that was nothing."""
    global pending
    if not select.select([outside], [], [], patience)[0]:
        return False
    pending += os.read(outside, 65536)
    # Not in the middle of a character or a control.
    end = len(pending)
    escape = pending.rfind(b"\x1b")
    if escape >= 0 and not re.match(rb"\x1b\[[?0-9;]*[A-Za-z]", pending[escape:]):
        end = escape
    text = pending[:end].decode(errors="ignore")
    whole = len(pending[:end].decode(errors="ignore").encode())
    pending = pending[whole:]
    screen.feed(text)
    return True


def until(holds, what):
    deadline = time.monotonic() + PATIENCE
    while not holds():
        if time.monotonic() > deadline:
            os.kill(child, signal.SIGKILL)
            sys.exit(f"no {what}:\n{screen.text()}")
        read(0.05)


for line in sys.stdin:
    step, _, rest = line.rstrip("\n").partition(" ")
    if step == "await":
        until(lambda: rest in screen.text(), line)
    elif step == "absent":
        until(lambda: rest not in screen.text(), line)
    elif step == "type":
        os.write(outside, rest.encode().decode("unicode_escape").encode())
    elif step == "resize":
        rows, columns = map(int, rest.split())
        while read(0.05):
            pass
        screen.resize(rows, columns)
        size(outside, rows, columns)
    elif step == "signal":
        os.kill(child, getattr(signal, rest))
    elif step == "screen":
        while read(0.2):
            pass
        print(f"---\n{screen.text()}\n---", flush=True)
    elif step == "leave":
        status = []

        def left():
            if not status:
                pid, how = os.waitpid(child, os.WNOHANG)
                status.extend([how] if pid else [])
            return status

        until(left, "end")
        while read(0):
            pass
        code = os.waitstatus_to_exitcode(status[0])
        restored = termios.tcgetattr(inside) == before
        plain = screen.cursor and not screen.alternate
        print(f"left with {code}, restored: {str(restored and plain).lower()}", flush=True)
    else:
        sys.exit(f"unknown step: {line}")
