// A host made of a TypeScript SDK: talk.mjs sdk|client auto|legacy http URL | … -- command args…
//
// sdk is the first generation, client the second, which can look for the modern era first (auto).
// Lists, calls, hears progress, cancels and leaves, and prints what it heard.

import { setTimeout as pause } from "node:timers/promises";

const [generation, mode, way, ...rest] = process.argv.slice(2);

const load = {
  sdk: async () => ({
    ...(await import("@modelcontextprotocol/sdk/client/index.js")),
    ...(await import("@modelcontextprotocol/sdk/client/stdio.js")),
    ...(await import("@modelcontextprotocol/sdk/client/streamableHttp.js")),
  }),
  client: async () => ({
    ...(await import("@modelcontextprotocol/client")),
    ...(await import("@modelcontextprotocol/client/stdio")),
  }),
}[generation];
const { Client, StdioClientTransport, StreamableHTTPClientTransport } = await load();

const show = (what, answer) => console.log(what, JSON.stringify(answer));
// The first generation has a schema between the two.
const call = (name, options) => {
  const params = { name, arguments: {} };
  return generation === "sdk" ? client.callTool(params, undefined, options) : client.callTool(params, options);
};
const count = async (what) => Number((await call(what)).content[0].text);
// Waits until the server has counted one more of these, and says whether it has.
const more = async (what, before) => {
  const deadline = performance.now() + 10_000;
  while ((await count(what)) <= before && performance.now() < deadline) await pause(20);
  return (await count(what)) > before;
};

const client = new Client({ name: "talk", version: "1" }, { versionNegotiation: { mode } });
const [command, ...args] = rest;
const transport =
  way === "http"
    ? new StreamableHTTPClientTransport(new URL(command))
    : new StdioClientTransport({ command, args, env: process.env });
await client.connect(transport);

show("server", client.getServerVersion());
show("tools", await client.listTools());
show("prompts", await client.listPrompts());
show("resources", await client.listResources());
for (const name of ["test_simple_text", "test_multiple_content_types", "test_error_handling"])
  show(name, await call(name));

const steps = [];
show("call", await call("test_tool_with_progress", { onprogress: (step) => steps.push(step) }));
show("progress", steps);

const begun = await count("begun");
const cancelled = await count("cancelled");
const given = new AbortController();
const slow = call("slow", { signal: given.signal }).then(
  () => "answered",
  () => "cancelled",
);
// Whoever is cancelled on the way need not reach the server.
show("begun", await more("begun", begun));
given.abort("enough");
show("slow", await slow);
show("seen", await more("cancelled", cancelled));

// Most hosts do not say that they leave. This one does.
if (way === "http") await transport.terminateSession?.();
await client.close();
