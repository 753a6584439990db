// node-postgres: its pool, named statements, pg-cursor, pg-query-stream, COPY by hand, LISTEN, cancel, pipelining.

const pg = require('pg');
const Cursor = require('pg-cursor');
const QueryStream = require('pg-query-stream');
const { DSN, SHOWS, TAG, equal, fails, main, part, pause, range, within } = require('./common.js');

const table = `t_${TAG}`;
const config = { connectionString: DSN, application_name: TAG };

/** A client for the time of `use`. */
async function client(use, more = {}) {
  const one = new pg.Client({ ...config, ...more });
  await one.connect();
  try {
    return await use(one);
  } finally {
    await one.end();
  }
}

part('shared', 'schema', () =>
  client(async (c) => {
    await c.query(`DROP TABLE IF EXISTS ${table}; CREATE TABLE ${table} (id int PRIMARY KEY, word text, doc jsonb)`);
    await c.query('SET synchronous_commit = local');
    for (const n of range(0, 50)) {
      await c.query(`INSERT INTO ${table} VALUES ($1, $2, $3)`, [n, `${TAG}-${n}`, { n }]);
      const { rows } = await c.query(`SELECT word, doc FROM ${table} WHERE id = $1`, [n]);
      equal(rows, [{ word: `${TAG}-${n}`, doc: { n } }]);
    }
    await c.query('RESET synchronous_commit');
    const many = await c.query(`INSERT INTO ${table} SELECT n, $1 || '-' || n FROM generate_series(50, 499) n`, [TAG]);
    equal(many.rowCount, 450);
  }));

part('shared', 'named statements over many transactions', () =>
  client(async (c) => {
    for (const n of range(0, 40)) {
      if (n % 3 === 0) await c.query('BEGIN');
      const { rows } = await c.query({
        name: `word-${n % 4}`,
        text: `SELECT word, ${n % 4} AS kind FROM ${table} WHERE id = $1`,
        values: [n],
      });
      equal(rows, [{ word: `${TAG}-${n}`, kind: n % 4 }]);
      if (n % 3 === 0) await c.query(n % 2 ? 'COMMIT' : 'ROLLBACK');
    }
    const rows = await c.query({ name: 'array', text: 'SELECT $1::int[]', values: [[1, 2]], rowMode: 'array' });
    equal(rows.rows, [[[1, 2]]]);
  }));

part('shared', 'transactions with errors', () =>
  client(async (c) => {
    for (const n of range(0, 10)) {
      await c.query('BEGIN');
      await c.query(`UPDATE ${table} SET word = 'x' WHERE id = $1`, [n]);
      await c.query('SAVEPOINT a');
      const error = await fails('23505', () => c.query(`INSERT INTO ${table} VALUES ($1)`, [n]));
      equal(error.constraint, `${table}_pkey`);
      await fails('25P02', () => c.query({ name: 'late', text: 'SELECT 1' }));
      await c.query('ROLLBACK TO a');
      equal((await c.query(`SELECT word FROM ${table} WHERE id = $1`, [n])).rows, [{ word: 'x' }]);
      await c.query('ROLLBACK');
      equal((await c.query(`SELECT word FROM ${table} WHERE id = $1`, [n])).rows, [{ word: `${TAG}-${n}` }]);
      await fails('42601', () => c.query({ name: 'bad', text: 'SELEC 1' }));
      await fails('22P02', () => c.query({ name: 'int', text: 'SELECT $1::int', values: ['no number'] }));
      equal((await c.query({ name: 'int', text: 'SELECT $1::int', values: [n] })).rows, [{ int4: n }]);
    }
  }));

part('shared', 'queries queued without waiting', () =>
  client(async (c) => {
    const answers = await Promise.all(
      range(0, 60).map((n) => {
        if (n % 10 === 9) return c.query('SELECT 1/$1::int', [0]).catch((error) => error.code);
        return c.query('SELECT $1::int AS n, $2::text AS tag', [n, TAG]).then(({ rows }) => rows[0]);
      }),
    );
    equal(answers, range(0, 60).map((n) => (n % 10 === 9 ? '22012' : { n, tag: TAG })));
  }));

part('shared', 'cursors and streams', () =>
  client(async (c) => {
    await c.query('BEGIN');
    const cursor = c.query(new Cursor(`SELECT id FROM ${table} WHERE id >= $1 ORDER BY id`, [10]));
    equal((await cursor.read(3)).map(({ id }) => id), [10, 11, 12]);
    equal((await cursor.read(100)).length, 100);
    await cursor.close();
    let seen = 0;
    for await (const row of c.query(new QueryStream(`SELECT id FROM ${table} ORDER BY id`, [], { batchSize: 33 }))) {
      equal(row.id, seen);
      seen += 1;
    }
    equal(seen, 500);
    await c.query('COMMIT');
    // Outside a transaction the cursor lives to the end of its batch.
    const alone = c.query(new Cursor('SELECT generate_series(1, 1000) AS n'));
    equal((await alone.read(400)).length, 400);
    equal((await alone.read(700)).length, 600);
    await alone.close();
    equal((await c.query('SELECT $1::text AS tag', [TAG])).rows, [{ tag: TAG }]);
  }));

part('shared', 'settings at connect', () =>
  client(
    async (c) => {
      await c.query("SET my.word = 'w'");
      for (const n of range(0, 15)) {
        const { rows } = await c.query(
          "SELECT current_setting('TimeZone') AS zone, current_setting('statement_timeout') AS t," +
            " current_setting('my.word') AS w, $1::int AS n", [n]);
        equal(rows, [{ zone: 'Asia/Tokyo', t: '20s', w: 'w', n }]);
      }
      await c.query('SET statement_timeout = 100');
      await fails('57014', () => c.query('SELECT pg_sleep(20)'));
    },
    { statement_timeout: 20_000, options: '-c TimeZone=Asia/Tokyo' },
  ));

part('shared', 'pool', async () => {
  const pool = new pg.Pool({ ...config, max: 4, idleTimeoutMillis: 200 });
  const worker = async (number) => {
    for (const n of range(0, 15)) {
      const { rows } = await pool.query({ name: 'pair', text: 'SELECT $1::int AS a, $2::int AS b', values: [number, n] });
      equal(rows, [{ a: number, b: n }]);
    }
    const one = await pool.connect();
    try {
      await one.query('BEGIN');
      await one.query(`INSERT INTO ${table} VALUES ($1, $2)`, [1000 + number, TAG]);
      equal((await one.query(`SELECT word FROM ${table} WHERE id = $1`, [1000 + number])).rows, [{ word: TAG }]);
      await one.query('ROLLBACK');
    } finally {
      one.release();
    }
  };
  await Promise.all(range(0, 8).map(worker));
  equal((await pool.query(`SELECT count(*)::int AS n FROM ${table}`)).rows, [{ n: 500 }]);
  await pool.end();
});

part('shared', 'cancel', () =>
  client(async (c) => {
    for (const _ of range(0, 3)) {
      const sleeping = fails('57014', () => c.query('SELECT pg_sleep(20)'));
      await pause(150);
      const other = new pg.Client(config);
      other.cancel(c, c.activeQuery ?? c._activeQuery);
      await within(10_000, sleeping, 'the cancel');
      equal((await c.query('SELECT $1::text AS tag', [TAG])).rows, [{ tag: TAG }]);
    }
  }));

part('pinned', 'listen', () =>
  client(async (listener) => {
    const seen = [];
    let all;
    const done = new Promise((resolve) => (all = resolve));
    listener.on('notification', ({ payload }) => {
      seen.push(payload);
      if (seen.length === 5) all();
    });
    await listener.query(`LISTEN "ch_${TAG}"`);
    await client(async (speaker) => {
      for (const n of range(0, 5)) await speaker.query('SELECT pg_notify($1, $2)', [`ch_${TAG}`, `${n}`]);
    });
    await within(10_000, done, 'notifications');
    equal(seen, ['0', '1', '2', '3', '4']);
    await listener.query('UNLISTEN *');
  }));

part('pinned', 'temporary tables', () =>
  client(async (c) => {
    await c.query('CREATE TEMP TABLE mine (n int)');
    for (const n of range(0, 5)) await c.query('INSERT INTO mine VALUES ($1)', [n]);
    equal((await c.query('SELECT sum(n)::int AS sum FROM mine')).rows, [{ sum: 10 }]);
    await c.query('DROP TABLE mine');
  }));

part('shared', 'tidy up', () => client((c) => c.query(`DROP TABLE IF EXISTS ${table}`)));

part('console', 'console', () =>
  client(async (c) => {
    for (const name of [...SHOWS, ...SHOWS]) {
      equal((await c.query(`SHOW ${name}`)).rows.length > 0, true, name);
      equal((await c.query({ name: `show-${name}`, text: `SHOW ${name}` })).rows.length > 0, true, name);
    }
    for (const row of (await c.query({ name: 'lists', text: 'SHOW LISTS' })).rows) equal(typeof row.items, 'number');
    await fails('42601', () => c.query('SHOW nonsense'));
    await fails('42501', () => c.query({ name: 'reload', text: 'RELOAD' }));
    equal((await c.query('SHOW VERSION')).rows.length, 1);
  }));

main();
