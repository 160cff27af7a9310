"""A host made of the Python SDK: drive.py MODE TOKEN [naps] -- command args…

talk   asks everything that has one answer, prints the answers, leaves politely.
legacy the same, without looking for the modern era first.
hold   repeats one call until somebody kills it, for two minutes at most.

naps   before each call of a talk it waits until its server is asleep.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, get_default_environment, stdio_client

CALLS = {
    "echo": {"message": "grüße, 世界 🐂"},
    "get-sum": {"a": 2, "b": 3},
    "convert_time": {"source_timezone": "Nowhere/At_All", "time": "12:00", "target_timezone": "UTC"},
}
LISTS = {"tools": "list_tools", "resources": "list_resources", "prompts": "list_prompts"}


def show(answer):
    print(json.dumps(answer.model_dump(mode="json", by_alias=True), ensure_ascii=False), flush=True)


def below(pid):
    """The children of a process, whichever of its threads started them."""
    return [int(child) for file in Path(f"/proc/{pid}/task").glob("*/children") for child in file.read_text().split()]


async def asleep():
    """Waits until the wrapper has nothing below it. What the server asks meanwhile is answered."""
    [wrapper] = [pid for pid in below("self") if Path(f"/proc/{pid}/comm").read_text() == "lariat\n"]
    deadline = time.monotonic() + 20
    while below(wrapper):
        if time.monotonic() > deadline:
            raise TimeoutError("the server is still awake")
        await asyncio.sleep(0.01)


async def ask(call, naps):
    if naps:
        await asleep()
    return await call()


async def talk(client, naps):
    has = client.server_capabilities.model_dump()
    for kind, method in LISTS.items():
        if has.get(kind) is not None:
            show(await ask(getattr(client, method), naps))
    names = {tool.name for tool in (await ask(client.list_tools, naps)).tools}
    for name in sorted(names & CALLS.keys()):
        show(await ask(lambda: client.call_tool(name, CALLS[name]), naps))


async def hold(client, _):
    names = {tool.name for tool in (await client.list_tools()).tools}
    name = sorted(names & CALLS.keys())[0]
    async with asyncio.timeout(120):
        while True:
            await client.call_tool(name, CALLS[name])


async def main():
    dashes = sys.argv.index("--")
    mode, token, *naps = sys.argv[1:dashes]
    command, *args = sys.argv[dashes + 1 :]
    env = get_default_environment() | {"LARIAT_TEST_TOKEN": token}
    transport = stdio_client(StdioServerParameters(command=command, args=args, env=env))
    async with Client(transport, mode="legacy" if mode == "legacy" else "auto") as client:
        await {"talk": talk, "legacy": talk, "hold": hold}[mode](client, naps)


asyncio.run(main())
