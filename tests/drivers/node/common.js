// What the Node programs share; see ../python/common.py for DSN, TAG and PARTS.

const assert = require('node:assert/strict');

const { DSN, TAG, PARTS = 'all' } = process.env;
const equal = (got, wanted, what) => assert.deepEqual(got, wanted, what);
const pause = (ms) => new Promise((done) => setTimeout(done, ms));
const range = (from, to) => Array.from({ length: to - from }, (_, n) => from + n);

// What those who look ask the console for; each answers with rows.
const SHOWS = ['POOLS', 'CLIENTS', 'SERVERS', 'DATABASES', 'USERS', 'LISTS', 'CONFIG', 'VERSION', 'STATE', 'POOL_NODES'];

const parts = [];

/** Registers a part of a kind (`shared` or `pinned`); parts run in the order of the file. */
function part(kind, name, run) {
  assert(['shared', 'pinned', 'console'].includes(kind));
  parts.push({ kind, name, run });
}

/** Asserts that it fails with that SQLSTATE. */
async function fails(code, run) {
  try {
    await run();
  } catch (error) {
    const got = error.code ?? error.cause?.code;
    if (got !== code) throw error;
    return error;
  }
  throw new Error(`no error ${code}`);
}

/** Waits for something, but not for ever. */
function within(ms, promise, what) {
  let timer;
  const late = new Promise((_, no) => {
    timer = setTimeout(() => no(new Error(`${what}: nothing within ${ms} ms`)), ms);
  });
  return Promise.race([promise, late]).finally(() => clearTimeout(timer));
}

/** Runs the chosen parts; the first that fails ends the program with exit code 1. */
async function main() {
  const chosen = parts.filter(({ kind }) => (PARTS === 'all' ? kind !== 'console' : PARTS === kind));
  for (const { name, run } of chosen) {
    const began = Date.now();
    try {
      await within(30_000, run(), name);
    } catch (error) {
      console.error(error);
      console.error(`FAILED ${TAG}: ${name} after ${Date.now() - began} ms`);
      process.exit(1);
    }
  }
  console.log(`ok ${TAG}: ${chosen.length} parts`);
}

module.exports = { DSN, SHOWS, TAG, equal, pause, range, part, fails, within, main };
