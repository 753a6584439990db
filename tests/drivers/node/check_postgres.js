// postgres.js: many queries pipelined on one socket, transactions, cursors, COPY streams, LISTEN, cancel.

const { pipeline } = require('node:stream/promises');
const { Readable } = require('node:stream');
const postgres = require('postgres');
const { DSN, SHOWS, TAG, equal, fails, main, part, pause, range, within } = require('./common.js');

const table = `t_${TAG}`;

async function connect(use, more = {}) {
  const sql = postgres(DSN, { max: 1, connection: { application_name: TAG }, onnotice: () => {}, ...more });
  try {
    return await use(sql);
  } finally {
    await sql.end({ timeout: 5 });
  }
}

part('shared', 'schema', () =>
  connect(async (sql) => {
    await sql`DROP TABLE IF EXISTS ${sql(table)}`;
    await sql`CREATE TABLE ${sql(table)} (id int PRIMARY KEY, word text, doc jsonb)`;
    const rows = range(0, 300).map((id) => ({ id, word: `${TAG}-${id}`, doc: { id } }));
    await sql`INSERT INTO ${sql(table)} ${sql(rows)}`;
    equal([...(await sql`SELECT count(*)::int AS n FROM ${sql(table)}`)], [{ n: 300 }]);
  }));

part('shared', 'many queries in flight on one socket', () =>
  connect(async (sql) => {
    for (const _ of range(0, 3)) {
      const answers = await Promise.all(
        range(0, 100).map((n) => {
          if (n % 25 === 24) return sql`SELECT 1 / ${0}::int`.catch((error) => error.code);
          if (n % 10 === 5) return sql.unsafe(`SELECT ${n} AS n, '${TAG}' AS tag`).then(([row]) => row);
          return sql`SELECT ${n}::int AS n, ${TAG}::text AS tag`.then(([row]) => row);
        }),
      );
      equal(answers, range(0, 100).map((n) => (n % 25 === 24 ? '22012' : { n, tag: TAG })));
    }
  }));

part('shared', 'reads its writes', () =>
  connect(async (sql) => {
    await sql`SET synchronous_commit = local`;
    for (const n of range(1000, 1030)) {
      const [, rows] = await Promise.all([
        sql`INSERT INTO ${sql(table)} VALUES (${n}, ${`${TAG}+${n}`})`,
        sql`SELECT word FROM ${sql(table)} WHERE id = ${n}`,
      ]);
      equal([...rows], [{ word: `${TAG}+${n}` }]);
    }
    await sql`RESET synchronous_commit`;
    equal((await sql`DELETE FROM ${sql(table)} WHERE id >= 1000`).count, 30);
  }));

part('shared', 'transactions with errors', () =>
  connect(
    async (sql) => {
      await Promise.all(
        range(0, 12).map(async (n) => {
          const error = await fails('23505', () =>
            sql.begin(async (tx) => {
              await tx`UPDATE ${tx(table)} SET word = 'x' WHERE id = ${n}`;
              await fails('22012', () => tx.savepoint((sp) => sp`SELECT 1 / ${0}::int`));
              const [{ word }] = await tx`SELECT word FROM ${tx(table)} WHERE id = ${n}`;
              equal(word, 'x');
              await tx`INSERT INTO ${tx(table)} VALUES (${n}, 'again')`;
            }));
          equal(error.constraint_name, `${table}_pkey`);
          const [a, b] = await sql.begin('isolation level repeatable read', (tx) => [
            tx`SELECT word FROM ${tx(table)} WHERE id = ${n}`,
            tx`SELECT ${n}::int AS n`,
          ]);
          equal([a[0].word, b[0].n], [`${TAG}-${n}`, n]);
          const [row] = await sql.begin('read only', (tx) => tx`SELECT word FROM ${tx(table)} WHERE id = ${n}`);
          equal(row.word, `${TAG}-${n}`);
        }),
      );
    },
    { max: 3 },
  ));

part('shared', 'cursors and forEach', () =>
  connect(async (sql) => {
    let seen = 0;
    for await (const rows of sql`SELECT id FROM ${sql(table)} ORDER BY id`.cursor(37)) seen += rows.length;
    equal(seen, 300);
    await sql`SELECT id FROM ${sql(table)} ORDER BY id`.cursor(10, ([row]) => (row.id >= 20 ? sql.CLOSE : undefined));
    let each = 0;
    await sql`SELECT generate_series(1, 500) AS n`.forEach(() => (each += 1));
    equal(each, 500);
    const description = await sql`SELECT id, word FROM ${sql(table)} WHERE id = ${1}`.describe();
    equal(description.columns.map(({ name }) => name), ['id', 'word']);
    equal([...(await sql`SELECT ${TAG}::text AS tag`)], [{ tag: TAG }]);
  }));

part('shared', 'COPY streams', () =>
  connect(async (sql) => {
    const lines = range(5000, 5700).map((n) => `${n}\t${TAG}~${n}\n`);
    const writable = await sql`COPY ${sql(table)} (id, word) FROM STDIN`.writable();
    await pipeline(Readable.from(lines), writable);
    const readable = await sql`COPY (SELECT id, word FROM ${sql(table)} WHERE id >= 5000 ORDER BY id) TO STDOUT`.readable();
    let text = '';
    for await (const chunk of readable) text += chunk;
    equal(text === lines.join(''), true, 'what was copied out is what was copied in');
    equal((await sql`DELETE FROM ${sql(table)} WHERE id >= 5000`).count, 700);
  }));

part('shared', 'cancel', () =>
  connect(async (sql) => {
    for (const _ of range(0, 3)) {
      const query = sql`SELECT pg_sleep(20)`;
      const sleeping = fails('57014', () => query);
      await pause(150);
      query.cancel();
      await within(10_000, sleeping, 'the cancel');
      equal([...(await sql`SELECT ${TAG}::text AS tag`)], [{ tag: TAG }]);
    }
  }));

part('shared', 'settings at connect', () =>
  connect(
    async (sql) => {
      const answers = await Promise.all(range(0, 20).map((n) => sql`SELECT current_setting('TimeZone') AS z, ${n}::int AS n`));
      equal(answers.map(([row]) => row), range(0, 20).map((n) => ({ z: 'Asia/Tokyo', n })));
    },
    { connection: { application_name: TAG, TimeZone: 'Asia/Tokyo' }, max: 3 },
  ));

part('shared', 'without prepared statements', () =>
  connect(
    async (sql) => {
      const answers = await Promise.all(range(0, 40).map((n) => sql`SELECT ${n}::int AS n, ${TAG}::text AS tag`));
      equal(answers.map(([row]) => row), range(0, 40).map((n) => ({ n, tag: TAG })));
    },
    { prepare: false, max: 2 },
  ));

part('pinned', 'listen', () =>
  connect(async (sql) => {
    const seen = [];
    let all;
    const done = new Promise((resolve) => (all = resolve));
    const { unlisten } = await sql.listen(`ch_${TAG}`, (payload) => {
      seen.push(payload);
      if (seen.length === 5) all();
    });
    for (const n of range(0, 5)) await sql.notify(`ch_${TAG}`, `${n}`);
    await within(10_000, done, 'notifications');
    equal(seen, ['0', '1', '2', '3', '4']);
    await unlisten();
  }));

part('pinned', 'reserved connection with an advisory lock', () =>
  connect(async (sql) => {
    const one = await sql.reserve();
    await one`SELECT pg_advisory_lock(4712)`;
    for (const n of range(0, 5)) equal([...(await one`SELECT ${n}::int AS n`)], [{ n }]);
    equal([...(await one`SELECT pg_advisory_unlock(4712) AS done`)], [{ done: true }]);
    one.release();
  }));

part('shared', 'tidy up', () => connect((sql) => sql`DROP TABLE IF EXISTS ${sql(table)}`));

part('console', 'console', async () => {
  for (const prepare of [true, false]) {
    await connect(
      async (sql) => {
        const all = await Promise.all([...SHOWS, ...SHOWS].map((name) => sql.unsafe(`SHOW ${name}`, [], { prepare })));
        for (const rows of all) equal(rows.length > 0, true, 'rows');
        equal((await sql`SHOW LISTS`).every(({ items }) => typeof items === 'number'), true, 'types');
        await fails('42601', () => sql`SHOW nonsense`);
        await fails('42501', () => sql`RELOAD`);
        equal((await sql`SHOW VERSION`).length, 1);
      },
      { prepare, fetch_types: false },
    );
  }
});

main();
