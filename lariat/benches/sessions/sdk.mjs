// Sessions of one server by the TypeScript SDK: sdk.mjs SESSIONS AT_ONCE command args…

import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StdioClientTransport } from "@modelcontextprotocol/sdk/client/stdio.js";

const [sessions, atOnce, command, ...args] = process.argv.slice(2);
const opens = [];
const ends = [];
let next = 0;

// Whoever started this has left.
process.stdin.on("end", () => process.exit(1)).resume();

async function work() {
  while (next++ < Number(sessions)) {
    const began = performance.now();
    const client = new Client({ name: "bench", version: "1" });
    await client.connect(new StdioClientTransport({ command, args, stderr: "ignore" }));
    await client.listTools();
    const opened = performance.now();
    await client.close();
    opens.push(opened - began);
    ends.push(performance.now() - opened);
  }
}

const began = performance.now();
await Promise.all(Array.from({ length: Number(atOnce) }, work));
const seconds = (performance.now() - began) / 1000;
process.stdout.write(JSON.stringify({ seconds, opens, ends }), () => process.exit(0));
