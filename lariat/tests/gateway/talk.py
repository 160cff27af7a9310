"""A host made of the Python SDK, second generation: talk.py auto|legacy http URL | … -- command args…

Lists, calls, hears progress, cancels and leaves, and prints what it heard.
"""

import asyncio
import json
import os
import sys
import time

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client


def show(what, answer):
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump(mode="json", by_alias=True)
    print(what, json.dumps(answer, ensure_ascii=False), flush=True)


async def count(client, what):
    return int((await client.call_tool(what, {})).content[0].text)


async def more(client, what, before):
    """Waits until the server has counted one more of these, and says whether it has."""
    deadline = time.monotonic() + 10
    while await count(client, what) <= before and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return await count(client, what) > before


async def talk(client):
    show("server", client.server_info)
    show("tools", await client.list_tools())
    show("prompts", await client.list_prompts())
    show("resources", await client.list_resources())
    for name in ["test_simple_text", "test_multiple_content_types", "test_error_handling"]:
        show(name, await client.call_tool(name, {}))
    steps = []

    async def step(progress, total, message):
        steps.append([progress, total, message])

    show("call", await client.call_tool("test_tool_with_progress", {}, progress_callback=step))
    show("progress", steps)

    begun, cancelled = await count(client, "begun"), await count(client, "cancelled")
    slow = asyncio.create_task(client.call_tool("slow", {}))
    # Whoever is cancelled on the way need not reach the server.
    show("begun", await more(client, "begun", begun))
    slow.cancel()
    await asyncio.wait([slow])
    show("slow", "cancelled" if slow.cancelled() else "answered")
    show("seen", await more(client, "cancelled", cancelled))


async def main():
    mode, way, *rest = sys.argv[1:]
    if way == "http":
        server = rest[0]
    else:
        server = stdio_client(StdioServerParameters(command=rest[0], args=rest[1:], env=dict(os.environ)))
    async with Client(server, mode=mode) as client:
        await talk(client)


asyncio.run(main())
