// node-postgres: logs in by every method and mode of TLS. argv: HOST PORT ROOT_CERT CERT KEY METHODS
// SOCKETS. A line a way: name, tab, ok or error.

const fs = require('fs');
const pg = require('pg');

const [host, port, ...files] = process.argv.slice(2, 7);
const [methods, sockets] = [process.argv[7].split(','), process.argv[8]];
const [ca, cert, key] = files.map((file) => fs.readFileSync(file));
const modes = {
  disable: false,
  require: { rejectUnauthorized: false },
  'verify-full': { ca, rejectUnauthorized: true },
};

async function go(database, ssl, more = {}) {
  const client = new pg.Client({ host, port: Number(port), database, user: 'bench', password: 'bench', ssl, ...more });
  await client.connect();
  try {
    const { rows } = await client.query('select 1 as one');
    return rows[0].one;
  } finally {
    await client.end();
  }
}

async function say(way, run) {
  try {
    const value = await run();
    console.log(`${way}\t${value === 1 ? 'ok' : value}`);
  } catch (error) {
    console.log(`${way}\tERROR ${error.code || ''} ${error.message}`);
  }
}

(async () => {
  for (const [name, ssl] of Object.entries(modes)) {
    await say(`trust ${name}`, () => go('c_trust', ssl, { password: 'wrong' }));
  }
  await say('cert require', () => go('c_cert', { ...modes.require, cert, key }));
  await say('cert verify-full', () => go('c_cert', { ...modes['verify-full'], cert, key }));
  await say('cert of nobody refused', () => go('c_cert', modes.require));
  for (const method of methods) {
    for (const [name, ssl] of Object.entries(modes)) {
      await say(`${method} ${name}`, () => go(`c_${method}`, ssl));
    }
    for (const version of ['TLSv1.2', 'TLSv1.3']) {
      const ssl = { ...modes['verify-full'], minVersion: version, maxVersion: version };
      await say(`${method} ${version}`, () => go(`c_${method}`, ssl));
    }
    await say(`${method} socket`, () => go(`c_${method}`, false, { host: sockets }));
    await say(`${method} wrong`, () => go(`c_${method}`, false, { password: 'wrong' }));
  }
  await say('trust socket', () => go('c_trust', false, { host: sockets, password: 'wrong' }));
  await say('peer socket', () => go('c_peer', false, { host: sockets, password: 'wrong' }));
  await say('peer as another refused', () => go('c_others', false, { host: sockets }));
  await say('peer over tcp refused', () => go('c_peer', modes.require));
  await say('scram direct', () => go('c_scram', modes['verify-full'], { sslnegotiation: 'direct' }));
  await say('scram binding', () => go('c_scram', modes['verify-full'], { enableChannelBinding: true }));
})();
