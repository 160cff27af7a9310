"""Sessions of one server by the Python SDK: sdk.py SESSIONS AT_ONCE command args…"""

import asyncio
import json
import os
import sys
import threading
import time

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


def leash():
    sys.stdin.buffer.read()
    os._exit(1)


async def main():
    sessions, at_once = map(int, sys.argv[1:3])
    server = StdioServerParameters(command=sys.argv[3], args=sys.argv[4:])
    opens, ends = [], []

    async def work(todo):
        for _ in todo:
            began = time.perf_counter()
            async with Client(stdio_client(server), mode="legacy") as client:
                await client.list_tools()
                opened = time.perf_counter()
            opens.append(1000 * (opened - began))
            ends.append(1000 * (time.perf_counter() - opened))

    todo = iter(range(sessions))
    began = time.perf_counter()
    await asyncio.gather(*(work(todo) for _ in range(at_once)))
    print(json.dumps({"seconds": time.perf_counter() - began, "opens": opens, "ends": ends}))


threading.Thread(target=leash, daemon=True).start()
asyncio.run(main())
# Whoever holds the leash does not have to let go first.
sys.stdout.flush()
os._exit(0)
