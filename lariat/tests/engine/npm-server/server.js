#!/usr/bin/env node
// A minimal MCP server on stdio that does what the report says: it starts containers as soon as it
// is started, one by the docker command and one by an SDK, and never ends them.
//
//   server.js TRIAL [--attached] [--python PROGRAM]
//
// Everything it creates carries the label trial=TRIAL. The first container is detached, or held by a
// `docker run -i` that stays. The SDK is the Python one if there is a Python that has it, otherwise
// the API itself over the socket. `initialize` is answered when all of it is up.
'use strict';

const { execFile, spawn } = require('node:child_process');
const http = require('node:http');
const path = require('node:path');
const readline = require('node:readline');
const { parseArgs, promisify } = require('node:util');

const run = promisify(execFile);

const options = { attached: { type: 'boolean' }, python: { type: 'string' } };
const { values, positionals } = parseArgs({ options, allowPositionals: true });
const { attached, python } = values;
const [trial] = positionals;

const IMAGE = 'bb:latest';
const DEAF = 'trap "" TERM; echo up; while :; do sleep 1; done';

// Networks and volumes one by one, then the container that uses them and brings a volume without a
// name: three things that must go in the right order.
async function byCommand() {
  const label = ['--label', `trial=${trial}`];
  await run('docker', ['network', 'create', ...label, `net-${trial}`]);
  await run('docker', ['volume', 'create', ...label, `vol-${trial}`]);
  const use = ['--network', `net-${trial}`, '-v', `vol-${trial}:/data`, '-v', '/nameless'];
  const what = [...label, ...use, '--name', `cli-${trial}`, IMAGE, 'sh', '-c', DEAF];
  if (!attached) {
    await run('docker', ['run', '-d', ...what]);
    return;
  }
  const docker = spawn('docker', ['run', '-i', ...what], { stdio: ['pipe', 'pipe', 'inherit'] });
  docker.stdin.on('error', () => {});
  await new Promise((resolve, reject) => {
    docker.stdout.once('data', resolve);
    docker.once('exit', (code) => reject(new Error(`docker run left with ${code}`)));
  });
  docker.removeAllListeners('exit');
}

async function bySdk() {
  if (python) {
    await run(python, [path.join(__dirname, 'sdk.py'), trial]);
    return;
  }
  const Labels = { trial };
  const net = { Name: `sdk-net-${trial}`, Labels };
  await call('/networks/create', net);
  await call('/volumes/create', { Name: `sdk-vol-${trial}`, Labels });
  const HostConfig = { NetworkMode: 'none', Binds: [`sdk-vol-${trial}:/data`] };
  const box = { Image: IMAGE, Cmd: ['sh', '-c', DEAF], Labels, HostConfig };
  const { Id } = await call(`/containers/create?name=sdk-${trial}`, box);
  await call(`/containers/${Id}/start`);
}

function call(where, body) {
  const socketPath = (process.env.DOCKER_HOST || '').replace(/^unix:\/\//, '');
  const text = body ? JSON.stringify(body) : '';
  const headers = { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) };
  return new Promise((resolve, reject) => {
    const request = http.request({ socketPath, path: where, method: 'POST', headers }, (reply) => {
      const parts = [];
      reply.on('data', (part) => parts.push(part));
      reply.on('end', () => {
        const said = Buffer.concat(parts).toString();
        if (reply.statusCode < 300) resolve(said ? JSON.parse(said) : {});
        else reject(new Error(`${where}: ${reply.statusCode} ${said}`));
      });
    });
    request.on('error', reject);
    request.end(text);
  });
}

const up = Promise.all([byCommand(), bySdk()]);
up.catch(() => {});

const answers = {
  initialize: async (params) => {
    await up;
    const serverInfo = { name: 'lariat-npm-server', version: '0.0.0' };
    return { protocolVersion: params.protocolVersion, capabilities: { tools: {} }, serverInfo };
  },
  'tools/list': async () => ({ tools: [] }),
  ping: async () => ({}),
};

const lines = readline.createInterface({ input: process.stdin });
lines.on('line', async (line) => {
  const { id, method, params = {} } = JSON.parse(line);
  if (method === 'notifications/leave') process.exit(7);
  if (id === undefined) return;
  const answer = { jsonrpc: '2.0', id };
  try {
    if (!answers[method]) throw new Error(`no method ${method}`);
    answer.result = await answers[method](params);
  } catch (error) {
    const why = String(error.stderr || error.message).slice(-500);
    answer.error = { code: -32603, message: why };
  }
  process.stdout.write(`${JSON.stringify(answer)}\n`);
});
lines.on('close', () => process.exit(0));
