// A host made of a TypeScript SDK: drive.mjs sdk|client auto|legacy TOKEN -- command args…
//
// sdk is the first generation, client the second, which can look for the modern era first (auto).
// Asks everything that has one answer, prints the answers, leaves politely.

const CALLS = {
  echo: { message: "grüße, 世界 🐂" },
  "get-sum": { a: 2, b: 3 },
  convert_time: { source_timezone: "Nowhere/At_All", time: "12:00", target_timezone: "UTC" },
};

const [generation, mode, token, dashes, command, ...args] = process.argv.slice(2);
if (dashes !== "--") throw new Error("drive.mjs sdk|client auto|legacy TOKEN -- command args…");

const modules = {
  sdk: ["@modelcontextprotocol/sdk/client/index.js", "@modelcontextprotocol/sdk/client/stdio.js"],
  client: ["@modelcontextprotocol/client", "@modelcontextprotocol/client/stdio"],
}[generation];
const [{ Client }, { StdioClientTransport, getDefaultEnvironment }] = await Promise.all(
  modules.map((module) => import(module)),
);

const show = (answer) => console.log(JSON.stringify(answer));

const client = new Client({ name: "drive", version: "1" }, { versionNegotiation: { mode } });
const env = { ...getDefaultEnvironment(), LARIAT_TEST_TOKEN: token };
await client.connect(new StdioClientTransport({ command, args, env }));
const { tools, resources, prompts } = client.getServerCapabilities();
show(client.getServerVersion());
if (tools) show(await client.listTools());
if (resources) show(await client.listResources());
if (prompts) show(await client.listPrompts());
const names = (await client.listTools()).tools.map((tool) => tool.name);
for (const name of names.filter((name) => name in CALLS).sort()) {
  show(await client.callTool({ name, arguments: CALLS[name] }));
}
await client.close();
