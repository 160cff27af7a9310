#!/usr/bin/env node
// Starts the binary of this platform and ends as it ends.
//
// Hosts never start this file: `lariat install` writes the binary's own path into their configs. It
// is for what a person types. Not process.execve: servers would inherit that Node ignores SIGPIPE.
'use strict';

const { spawn } = require('node:child_process');
const { constants } = require('node:os');

const platform = `${process.platform}-${process.arch}`;

function fail(what, advice) {
  process.stderr.write(`lariat: ${what}\n  ${advice}\n`);
  process.exit(125);
}

function find() {
  try {
    return require.resolve(`@lariat/${platform}/bin/lariat`);
  } catch {
    return fail(
      `there is no package @lariat/${platform} beside this one`,
      'install again without --omit=optional; on other platforms, `cargo install lariat`',
    );
  }
}

const binary = find();
const args = process.argv.slice(2);

// SIGKILL cannot be passed on. The binary sees that its parent is gone, and ends what it holds.
const child = spawn(binary, args, { stdio: 'inherit' });
for (const signal of ['SIGINT', 'SIGTERM', 'SIGHUP', 'SIGQUIT']) {
  process.on(signal, () => child.kill(signal));
}
child.on('error', (error) => fail(`cannot start ${binary}: ${error.message}`, 'install the package again'));
child.on('exit', (code, signal) => process.exit(code ?? 128 + constants.signals[signal]));
