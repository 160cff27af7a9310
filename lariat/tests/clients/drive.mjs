// A host made of a TypeScript SDK: drive.mjs sdk|client auto|legacy TOKEN [naps] -- command args…
//
// sdk is the first generation, client the second, which can look for the modern era first (auto).
// Asks everything that has one answer, prints the answers, leaves politely. With naps it waits before
// each call until its server is asleep.

import { readFileSync, readdirSync } from "node:fs";
import { setTimeout as pause } from "node:timers/promises";

const CALLS = {
  echo: { message: "grüße, 世界 🐂" },
  "get-sum": { a: 2, b: 3 },
  convert_time: { source_timezone: "Nowhere/At_All", time: "12:00", target_timezone: "UTC" },
};

const dashes = process.argv.indexOf("--");
const [generation, mode, token, naps] = process.argv.slice(2, dashes);
const [command, ...args] = process.argv.slice(dashes + 1);

const modules = {
  sdk: ["@modelcontextprotocol/sdk/client/index.js", "@modelcontextprotocol/sdk/client/stdio.js"],
  client: ["@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio"],
}[generation];
const [{ Client }, { StdioClientTransport, getDefaultEnvironment }] = await Promise.all(
  modules.map((module) => import(module)),
);

// The children of a process, whichever of its threads started them.
const below = (pid) =>
  readdirSync(`/proc/${pid}/task`).flatMap((thread) =>
    readFileSync(`/proc/${pid}/task/${thread}/children`, "utf8").split(" ").filter(Boolean),
  );

// Waits until the wrapper has nothing below it. What the server asks meanwhile is answered.
const asleep = async () => {
  const isWrapper = (pid) => readFileSync(`/proc/${pid}/comm`, "utf8") === "lariat\n";
  const [wrapper, ...others] = below("self").filter(isWrapper);
  if (!wrapper || others.length > 0) throw new Error("one wrapper is expected");
  const deadline = performance.now() + 20_000;
  while (below(wrapper).length > 0) {
    if (performance.now() > deadline) throw new Error("the server is still awake");
    await pause(10);
  }
};
const ask = async (call) => {
  if (naps) await asleep();
  return call();
};

const show = (answer) => console.log(JSON.stringify(answer));

const client = new Client({ name: "drive", version: "1" }, { versionNegotiation: { mode } });
const env = { ...getDefaultEnvironment(), LARIAT_TEST_TOKEN: token };
await client.connect(new StdioClientTransport({ command, args, env }));
const { tools, resources, prompts } = client.getServerCapabilities();
show(client.getServerVersion());
if (tools) show(await ask(() => client.listTools()));
if (resources) show(await ask(() => client.listResources()));
if (prompts) show(await ask(() => client.listPrompts()));
const names = (await ask(() => client.listTools())).tools.map((tool) => tool.name);
for (const name of names.filter((name) => name in CALLS).sort()) {
  show(await ask(() => client.callTool({ name, arguments: CALLS[name] })));
}
await client.close();
