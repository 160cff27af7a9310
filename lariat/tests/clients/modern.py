"""A server that speaks the modern era alone, as none of the packages does."""

import json
import sys

VERSION = "2026-07-28"
META = {"_meta": {"io.modelcontextprotocol/serverInfo": {"name": "modern", "version": "1"}}, "resultType": "complete"}
CACHED = {**META, "ttlMs": 0, "cacheScope": "private"}
TOOL = {"name": "echo", "inputSchema": {"type": "object"}}

for line in sys.stdin:
    message = json.loads(line)
    method, params = message.get("method"), message.get("params") or {}
    if "id" not in message:
        continue
    answer = {"jsonrpc": "2.0", "id": message["id"]}
    if params.get("_meta", {}).get("io.modelcontextprotocol/protocolVersion") != VERSION:
        data = {"supported": [VERSION], "requested": params.get("protocolVersion", "")}
        answer["error"] = {"code": -32022, "message": "unsupported protocol version", "data": data}
    elif method == "server/discover":
        answer["result"] = {**CACHED, "supportedVersions": [VERSION], "capabilities": {"tools": {}}}
    elif method == "tools/list":
        answer["result"] = {**CACHED, "tools": [TOOL]}
    elif method == "tools/call":
        text = params.get("arguments", {}).get("message", "")
        answer["result"] = {**META, "content": [{"type": "text", "text": text}]}
    else:
        answer["error"] = {"code": -32601, "message": f"no such method: {method}"}
    print(json.dumps(answer), flush=True)
