// A client of the legacy era without any SDK: raw.mjs WORD http URL | raw.mjs WORD -- command args…
//
// Asks the reference server everything that it has, the same for either way, answers what it asks, and
// prints what it said: results as they came, but for what is different every time. WORD is in the
// environment that the server is to have.

import { spawn } from "node:child_process";
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";

const VERSION = "2025-11-25";
const [word, way, ...rest] = process.argv.slice(2);

// What a user would say.
const ANSWERS = {
  "roots/list": { roots: [{ uri: "file:///somewhere", name: "somewhere" }] },
  "sampling/createMessage": { role: "assistant", model: "none", content: { type: "text", text: "So it is." } },
  "elicitation/create": { action: "decline" },
  ping: {},
};

const waiting = new Map();
const progress = new Map();
const asked = [];
let say;

const heard = (message) => {
  if (message.method !== undefined && message.id !== undefined) {
    asked.push(message.method);
    const known = ANSWERS[message.method];
    const error = { code: -32601, message: "unknown" };
    void say({ jsonrpc: "2.0", id: message.id, ...(known ? { result: known } : { error }) });
  } else if (message.method === "notifications/progress") {
    const { progressToken, ...more } = message.params;
    progress.get(progressToken)?.push(more);
  } else if (message.id !== undefined) {
    waiting.get(message.id)?.(message);
    waiting.delete(message.id);
  }
};

const byStdio = ([command, ...args]) => {
  const server = spawn(command, args, { stdio: ["pipe", "pipe", "ignore"] });
  createInterface({ input: server.stdout }).on("line", (line) => heard(JSON.parse(line)));
  say = async (message) => void server.stdin.write(`${JSON.stringify(message)}\n`);
  return async () => {
    const ended = new Promise((go) => server.once("exit", go));
    server.stdin.end();
    // By itself it stays as long as a task of its might be asked for.
    if (await Promise.race([pause(2_000, true, { ref: false }), ended.then(() => false)])) server.kill("SIGKILL");
    await ended;
  };
};

const byHttp = ([url]) => {
  const gone = new AbortController();
  let session;
  const head = () => ({
    accept: "application/json, text/event-stream",
    ...(session && { "mcp-session-id": session, "mcp-protocol-version": VERSION }),
  });
  // Events as they come; an empty one is only a mark.
  const events = async (body) => {
    let text = "";
    const decoder = new TextDecoder();
    for await (const part of body) {
      text += decoder.decode(part, { stream: true });
      for (let end; (end = text.indexOf("\n\n")) >= 0; text = text.slice(end + 2)) {
        const lines = text.slice(0, end).split("\n").filter((line) => line.startsWith("data:"));
        const data = lines.map((line) => line.slice(5).trim()).join("\n");
        if (data) heard(JSON.parse(data));
      }
    }
  };
  const quietly = (promise) => promise.catch((error) => gone.signal.aborted || fail(error));
  const listen = async () => {
    const response = await fetch(url, { headers: { ...head(), accept: "text/event-stream" }, signal: gone.signal });
    if (!response.ok) throw new Error(`GET: ${response.status}`);
    await events(response.body);
  };
  say = async (message) => {
    const headers = { ...head(), "content-type": "application/json" };
    const response = await fetch(url, { method: "POST", headers, body: JSON.stringify(message), signal: gone.signal });
    if (!response.ok) throw new Error(`${JSON.stringify(message)}: ${response.status} ${await response.text()}`);
    session ??= response.headers.get("mcp-session-id");
    if (message.method === "notifications/initialized") void quietly(listen());
    const type = response.headers.get("content-type") ?? "";
    if (type.startsWith("application/json")) heard(await response.json());
    else if (type.startsWith("text/event-stream")) void quietly(events(response.body));
  };
  return async () => {
    await fetch(url, { method: "DELETE", headers: head() });
    gone.abort();
  };
};

const fail = (error) => {
  console.error(error);
  process.exit(1);
};

let next = 1;
const ask = async (method, params) => {
  const id = next++;
  const answer = new Promise((go, stop) => {
    waiting.set(id, go);
    setTimeout(() => stop(new Error(`no answer to ${method} ${JSON.stringify(params)}`)), 30_000).unref();
  });
  await say({ jsonrpc: "2.0", id, method, ...(params && { params }) });
  const { result, error } = await answer;
  return result ?? { error };
};

// Whatever is another one every time.
const steady = (text) =>
  text
    .replaceAll(/\d{4}-\d\d-\d\dT[\d:.]+Z/g, "MOMENT")
    .replaceAll(/\d{1,2}:\d\d:\d\d(.[AP]M)?/g, "TIME")
    .replaceAll(/[0-9a-f]{8}-[0-9a-f-]{27}/g, "UUID")
    .replaceAll(/"taskId":"[0-9a-f]+"/g, '"taskId":"TASK"');
const show = (what, value) => console.log(what, steady(JSON.stringify(value)));

const close = way === "http" ? byHttp(rest) : byStdio(rest);
const capabilities = { roots: { listChanged: true }, sampling: {}, elicitation: { form: {} } };
const clientInfo = { name: "raw", version: "1" };
show("initialize", await ask("initialize", { protocolVersion: VERSION, capabilities, clientInfo }));
await say({ jsonrpc: "2.0", method: "notifications/initialized" });
// It offers some of its tools after it has asked for the roots.
const deadline = performance.now() + 20_000;
while (!asked.includes("roots/list") && performance.now() < deadline) await pause(10);
let tools;
do tools = (await ask("tools/list")).tools.map(({ name }) => name);
while (!tools.includes("get-roots-list") && performance.now() < deadline);
show("asked", asked.splice(0));

const CALLS = [
  ["echo", { message: "grüße, 世界 🐂 \u2028 12345678901234567890" }],
  ["echo", {}],
  ["get-annotated-message", { messageType: "error", includeImage: true }],
  ["get-resource-links", { count: 4 }],
  ["get-resource-reference", { resourceType: "Text", resourceId: 3 }],
  ["get-roots-list", {}],
  ["get-structured-content", { location: "Chicago" }],
  ["get-sum", { a: 0.1, b: 0.2 }],
  ["get-tiny-image", {}],
  ["gzip-file-as-resource", { name: "a.gz", data: "data:text/plain,abc", outputType: "resource" }],
  ["trigger-elicitation-request", {}],
  ["trigger-long-running-operation", { duration: 0.2, steps: 4 }],
  ["trigger-sampling-request", { prompt: "Is it so?", maxTokens: 10 }],
  ["no-such-tool", {}],
];
show("tools/list", await ask("tools/list"));
for (const [name, args] of CALLS) {
  const progressToken = `${name}, of ${next}`;
  progress.set(progressToken, []);
  show(name, await ask("tools/call", { name, arguments: args, _meta: { progressToken } }));
  show("  progress", progress.get(progressToken));
  show("  asked", asked.splice(0));
}
const seen = (await ask("tools/call", { name: "get-env" })).content[0].text;
show("get-env", { ours: seen.includes(word), names: Object.keys(JSON.parse(seen)).length > 3 });

const topic = { name: "simulate-research-query", arguments: { topic: "ropes" }, task: { ttl: 60_000 } };
const { task } = await ask("tools/call", topic);
show("task", { ...task, taskId: typeof task?.taskId });
let state;
do {
  await pause(200);
  state = await ask("tasks/get", { taskId: task.taskId });
} while (state.status === "working" && performance.now() < deadline + 30_000);
show("tasks/get", { ...state, taskId: state.taskId === task.taskId });
show("tasks/result", await ask("tasks/result", { taskId: task.taskId }));
show("tasks/list", (await ask("tasks/list")).tasks?.length);

for (const method of ["prompts/list", "resources/list", "resources/templates/list", "ping", "no/such/method"])
  show(method, await ask(method));
for (const [name, args] of [
  ["simple-prompt"],
  ["args-prompt", { city: "Köln", state: "NRW" }],
  ["completable-prompt", { department: "Engineering", name: "Alice" }],
  ["resource-prompt", { resourceType: "Text", resourceId: "2" }],
  ["args-prompt", {}],
])
  show(name, await ask("prompts/get", { name, ...(args && { arguments: args }) }));
for (const uri of ["demo://resource/static/document/features.md", "demo://resource/dynamic/text/7", "demo://none"])
  show(uri, await ask("resources/read", { uri }));
const ref = { type: "ref/prompt", name: "completable-prompt" };
show("completion", await ask("completion/complete", { ref, argument: { name: "department", value: "E" } }));
show("level", await ask("logging/setLevel", { level: "warning" }));
for (const method of ["resources/subscribe", "resources/unsubscribe"])
  show(method, await ask(method, { uri: "demo://resource/dynamic/text/7" }));
await close();
