#!/usr/bin/env python3
"""24 agent turns, each with MCP servers of its own, and nothing left of any.

    examples/conductor.py
    examples/conductor.py --turns 3 --server time="uvx mcp-server-time" --call 'get_current_time={"timezone": "UTC"}'

Each turn opens a session, lists the tools of its servers, calls each server once and destroys the
session. `Lariat` and `Session` are what to copy: Python's standard library, and the `lariat` command
to find the daemon with. A session ends with the connection by which it was opened. So it ends with
this program too, however that ends: there is nothing to renew, to catch or to clean up.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from urllib.parse import quote


class Refused(Exception):
    """The daemon says why not. `problem` is all it says (RFC 9457), `status` its number."""

    def __init__(self, problem: dict):
        super().__init__(problem.get("detail") or problem.get("title") or "refused")
        self.status = problem.get("status")
        self.problem = problem


class DaemonGone(Exception):
    """The connection to the daemon broke. The sessions that were opened by it have ended, or are about to."""


class Connection(http.client.HTTPConnection):
    """HTTP over a unix socket. Connects once: a lease that has ended must not be silently replaced."""

    auto_open = 0

    def __init__(self, path: str):
        super().__init__("lariat")
        self.path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.connect(self.path)

    def ask(self, method: str, path: str, body: dict | None = None, headers: dict | None = None):
        """Sends one request and returns what the answer says."""
        try:
            if self.sock is None:
                self.connect()
            text = None if body is None else json.dumps(body).encode()
            self.request(method, path, text, {"Content-Type": "application/json", **(headers or {})})
            response = self.getresponse()
            answer = response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise DaemonGone(f"the connection to the daemon broke ({type(error).__name__}): {self.path}") from error
        said = json.loads(answer)
        if response.status >= 400:
            raise Refused(said)
        return said


class Lariat:
    """The daemon. Without a socket, the one of this user, which is started if none runs."""

    def __init__(self, path: str | None = None, command: str = "lariat"):
        if path is None:
            start = subprocess.run([command, "daemon", "--start"], stdout=subprocess.PIPE, text=True, check=True)
            path = start.stdout.strip()
        self.path = path

    def ask(self, method: str, path: str, body: dict | None = None):
        """One request on a connection of its own, so that threads need not wait for each other."""
        connection = Connection(self.path)
        try:
            return connection.ask(method, path, body)
        finally:
            connection.close()

    def open(self, servers: dict, name: str | None = None) -> Session:
        """Starts servers. Returns when each is ready or has failed: `session.servers` says which."""
        return Session(self, servers, name)

    def snapshot(self) -> list:
        """All sessions with their servers and processes."""
        return self.ask("GET", "/v1/snapshot")["sessions"]


class Session:
    """Servers that live as long as this session: until `close`, or until this process ends."""

    def __init__(self, lariat: Lariat, servers: dict, name: str | None = None):
        self.lariat = lariat
        self.receipt = None
        # Open as long as the session; nothing else is said on it.
        self.lease = Connection(lariat.path)
        request = {"servers": servers} if name is None else {"name": name, "servers": servers}
        opened = self.lease.ask("POST", "/v1/sessions", request, {"Lariat-Lease": "connection"})
        self.id, self.servers = opened["id"], opened["servers"]

    def tools(self) -> dict:
        """The names of the tools, by server."""
        return {name: server["tools"] for name, server in self.servers.items() if "tools" in server}

    def call(self, server: str, tool: str, arguments: dict | None = None) -> dict:
        """Calls a tool. The result is the server's own; `isError` in it is its own word too."""
        path = f"/v1/sessions/{self.id}/servers/{quote(server, safe='')}/call"
        return self.lariat.ask("POST", path, {"tool": tool, "arguments": arguments or {}})

    def refresh(self, servers: dict) -> dict:
        """Replaces the servers. Those that are the same go on; the others are gone when this returns."""
        session = self.lariat.ask("POST", f"/v1/sessions/{self.id}/refresh", {"servers": servers})
        self.servers = session["servers"]
        return session

    def close(self) -> dict:
        """Ends all of it. Returns the receipt when nothing is left; what is left is in `survivors`."""
        if self.receipt is None:
            try:
                self.receipt = self.lariat.ask("DELETE", f"/v1/sessions/{self.id}")
            finally:
                self.lease.close()
        return self.receipt

    def __enter__(self) -> Session:
        return self

    def __exit__(self, kind, error, trace):
        if kind is None:
            self.close()
        else:
            # Whatever went wrong: letting go is enough.
            self.lease.close()


def server(command: list) -> dict:
    """A server as this program would start it: the daemon has a PATH and a directory of its own."""
    program = shutil.which(command[0]) or command[0]
    return {"command": program, "args": command[1:], "env": {"PATH": os.environ.get("PATH", "")}, "cwd": os.getcwd()}


def start_time(pid: int) -> int | None:
    """When the process with this pid was started. A pid alone may be somebody else's by now."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            state, *fields = stat.read().rpartition(b")")[2].split()
    except OSError:
        return None
    return None if state in b"ZX" else int(fields[18])


class Conductor:
    """Runs the turns, and keeps count."""

    def __init__(self, lariat: Lariat, servers: dict, call: tuple | None):
        self.lariat = lariat
        self.servers = servers
        self.tool = call
        self.most = 0
        self.seen = set()
        self.survivors = []

    def count(self) -> int:
        """The processes that our sessions have now, this turn's and any that an earlier one left."""
        ours = [session for session in self.lariat.snapshot() if session["owner"]["pid"] == os.getpid()]
        trees = [server["processes"] for session in ours for server in session["servers"] if server["processes"]]
        alive = {(process["pid"], process["start"]) for tree in trees for process in tree}
        self.most = max(self.most, len(trees))
        self.seen |= alive
        return len(alive)

    def turn(self, number: int) -> dict:
        """One agent's turn. Returns its receipt."""
        began = time.monotonic()
        with self.lariat.open(self.servers, f"turn-{number}") as session:
            opened = time.monotonic()
            for name, state in session.servers.items():
                if state["state"] != "ready":
                    raise SystemExit(f"conductor: server {name} is {state['state']}: {state.get('error')}")
            for name, tools in session.tools().items():
                tool, arguments = self.tool or (tools[0], {})
                session.call(name, tool, arguments)
            alive = self.count()
            called = time.monotonic()
            receipt = session.close()
            closed = time.monotonic()
        self.survivors += receipt["survivors"]
        ends = [sum(r["processes"][how] for r in receipt["receipts"]) for how in ("left", "asked", "killed")]
        print(
            f"turn {number:2}: {alive} processes, open {1000 * (opened - began):.0f} ms,"
            f" destroy {1000 * (closed - called):.0f} ms,"
            " {} left by themselves, {} when asked, {} killed".format(*ends),
            flush=True,
        )
        return receipt

    def still_there(self) -> list:
        """Receipts are good, looking is better: the processes that were seen and are still there."""
        return [pid for pid, start in sorted(self.seen) if start_time(pid) == start]


def serve():
    """A small MCP server on standard input and output: what the turns use if no other is named."""
    tool = {"name": "echo", "description": "Says it back.", "inputSchema": {"type": "object"}}
    for line in sys.stdin:
        message = json.loads(line)
        method, params = message.get("method"), message.get("params") or {}
        if "id" not in message or method is None:
            continue
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        if method == "initialize":
            info = {"name": "conductor", "version": "1"}
            version = params.get("protocolVersion", "2025-06-18")
            answer["result"] = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        elif method == "tools/list":
            answer["result"] = {"tools": [tool]}
        elif method == "tools/call":
            text = json.dumps(params.get("arguments") or {})
            answer["result"] = {"content": [{"type": "text", "text": text}]}
        elif method == "ping":
            answer["result"] = {}
        else:
            answer["error"] = {"code": -32601, "message": f"no such method: {method}"}
        print(json.dumps(answer), flush=True)


def named(text: str) -> tuple:
    name, equals, command = text.partition("=")
    words = shlex.split(command)
    if not (name and words):
        raise argparse.ArgumentTypeError("it is NAME=COMMAND, as in time='uvx mcp-server-time'")
    return name, words


def called(text: str) -> tuple:
    tool, equals, arguments = text.partition("=")
    return tool, json.loads(arguments or "{}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--turns", type=int, default=24, metavar="N")
    parser.add_argument("--server", type=named, action="append", metavar="NAME=COMMAND", help="a server (repeatable)")
    parser.add_argument("--call", type=called, metavar="TOOL[=JSON]", help="what to call; else the first tool of each")
    parser.add_argument("--receipts", action="store_true", help="print the receipts too, as JSON")
    parser.add_argument("--socket", metavar="PATH", help="a daemon that runs; else the one of this user, on demand")
    parser.add_argument("--lariat", default="lariat", metavar="PATH", help="the command, if it is not in PATH")
    parser.add_argument("--serve", action="store_true", help="be a small MCP server")
    args = parser.parse_args()
    if args.serve:
        serve()
        return 0
    own = [(name, [sys.executable, os.path.abspath(__file__), "--serve"]) for name in ("files", "search", "tests")]
    servers = {name: server(words) for name, words in args.server or own}
    try:
        conductor = Conductor(Lariat(args.socket, args.lariat), servers, args.call)
        for number in range(1, args.turns + 1):
            receipt = conductor.turn(number)
            if args.receipts:
                print(json.dumps(receipt), flush=True)
    except (Refused, DaemonGone, OSError, subprocess.CalledProcessError) as error:
        print(f"conductor: {error}", file=sys.stderr)
        return 1
    survivors = conductor.survivors + conductor.still_there()
    print(f"{args.turns} turns, at most {conductor.most} servers at once, survivors: {survivors}")
    return 1 if survivors else 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit(130)
