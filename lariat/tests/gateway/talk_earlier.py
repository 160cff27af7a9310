"""A host made of the Python SDK, first generation: talk_earlier.py http URL | … -- command args…

Lists, calls, hears progress, cancels and leaves, and prints what it heard.
"""

import asyncio
import json
import os
import sys
import time

from mcp import ClientSession, StdioServerParameters, stdio_client, types
from mcp.client.streamable_http import streamable_http_client


def show(what, answer):
    if hasattr(answer, "model_dump"):
        answer = answer.model_dump(mode="json", by_alias=True)
    print(what, json.dumps(answer, ensure_ascii=False), flush=True)


async def count(session, what):
    return int((await session.call_tool(what, {})).content[0].text)


async def more(session, what, before):
    """Waits until the server has counted one more of these, and says whether it has."""
    deadline = time.monotonic() + 10
    while await count(session, what) <= before and time.monotonic() < deadline:
        await asyncio.sleep(0.02)
    return await count(session, what) > before


async def talk(session):
    show("server", await session.initialize())
    show("tools", await session.list_tools())
    show("prompts", await session.list_prompts())
    show("resources", await session.list_resources())
    for name in ["test_simple_text", "test_multiple_content_types", "test_error_handling"]:
        show(name, await session.call_tool(name, {}))
    steps = []

    async def step(progress, total, message):
        steps.append([progress, total, message])

    show("call", await session.call_tool("test_tool_with_progress", {}, progress_callback=step))
    show("progress", steps)

    begun, cancelled = await count(session, "begun"), await count(session, "cancelled")
    # It numbers its requests, and leaves it to its user to say that one is not wanted any more.
    number = session._request_id
    slow = asyncio.create_task(session.call_tool("slow", {}))
    await asyncio.sleep(0)  # Now it has its number.
    show("begun", await more(session, "begun", begun))
    params = types.CancelledNotificationParams(requestId=number, reason="enough")
    await session.send_notification(types.ClientNotification(types.CancelledNotification(params=params)))
    slow.cancel()
    await asyncio.wait([slow])
    show("slow", "cancelled" if slow.cancelled() else "answered")
    show("seen", await more(session, "cancelled", cancelled))


async def main():
    way, *rest = sys.argv[1:]
    if way == "http":
        transport = streamable_http_client(rest[0])
    else:
        transport = stdio_client(StdioServerParameters(command=rest[0], args=rest[1:], env=dict(os.environ)))
    async with transport as (read, write, *_), ClientSession(read, write) as session:
        await talk(session)


asyncio.run(main())
