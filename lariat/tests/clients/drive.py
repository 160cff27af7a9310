"""A host made of the Python SDK: drive.py MODE TOKEN -- command args…

talk   asks everything that has one answer, prints the answers, leaves politely.
legacy the same, without looking for the modern era first.
hold   repeats one call until somebody kills it, for two minutes at most.
"""

import asyncio
import json
import sys

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


async def talk(client):
    has = client.server_capabilities.model_dump()
    for kind, method in LISTS.items():
        if has.get(kind) is not None:
            show(await getattr(client, method)())
    names = {tool.name for tool in (await client.list_tools()).tools}
    for name in sorted(names & CALLS.keys()):
        show(await client.call_tool(name, CALLS[name]))


async def hold(client):
    names = {tool.name for tool in (await client.list_tools()).tools}
    name = sorted(names & CALLS.keys())[0]
    async with asyncio.timeout(120):
        while True:
            await client.call_tool(name, CALLS[name])


async def main():
    mode, token, dashes, command, *args = sys.argv[1:]
    assert dashes == "--"
    env = get_default_environment() | {"LARIAT_TEST_TOKEN": token}
    transport = stdio_client(StdioServerParameters(command=command, args=args, env=env))
    async with Client(transport, mode="legacy" if mode == "legacy" else "auto") as client:
        await {"talk": talk, "legacy": talk, "hold": hold}[mode](client)


asyncio.run(main())
