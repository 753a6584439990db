// Drizzle over node-postgres and over postgres.js, and Knex: prepared queries, transactions, savepoints, streams.

const { eq, gte, like, sql: raw } = require('drizzle-orm');
const { drizzle: overPg } = require('drizzle-orm/node-postgres');
const { drizzle: overPostgres } = require('drizzle-orm/postgres-js');
const { integer, pgTable, serial, text, timestamp } = require('drizzle-orm/pg-core');
const knexOver = require('knex');
const pg = require('pg');
const postgres = require('postgres');
const { DSN, TAG, equal, fails, main, part, range } = require('./common.js');

const authors = pgTable(`author_${TAG}`, { id: serial().primaryKey(), name: text().notNull().unique() });
const books = pgTable(`book_${TAG}`, {
  id: serial().primaryKey(),
  author: integer().notNull().references(() => authors.id),
  title: text().notNull(),
  at: timestamp().defaultNow(),
});

part('shared', 'schema', async () => {
  const client = new pg.Client(DSN);
  await client.connect();
  await client.query(`
    DROP TABLE IF EXISTS book_${TAG}; DROP TABLE IF EXISTS author_${TAG};
    CREATE TABLE author_${TAG} (id serial PRIMARY KEY, name text NOT NULL UNIQUE);
    CREATE TABLE book_${TAG} (id serial PRIMARY KEY, author int NOT NULL REFERENCES author_${TAG}, title text NOT NULL,
      at timestamp DEFAULT now())`);
  await client.end();
});

async function drizzle(db, label) {
  const byName = db.select().from(authors).where(eq(authors.name, raw.placeholder('name'))).prepare(`by_name_${label}`);
  for (const n of range(0, 10)) {
    const name = `${TAG}-${label}-${n}`;
    await db.transaction(async (tx) => {
      const [author] = await tx.insert(authors).values({ name }).returning();
      await tx.insert(books).values(range(0, 5).map((b) => ({ author: author.id, title: `${name}/${b}` })));
      await fails('23505', () => tx.transaction((inner) => inner.insert(authors).values({ name })));
      const joined = await tx.select({ title: books.title }).from(books).innerJoin(authors, eq(books.author, authors.id))
        .where(eq(authors.name, name)).orderBy(books.id);
      equal(joined.map(({ title }) => title), range(0, 5).map((b) => `${name}/${b}`));
    });
    equal((await byName.execute({ name })).map((row) => row.name), [name]);
    await fails('23505', () => db.insert(authors).values({ name }));
  }
  await db.transaction(
    async (tx) => equal((await tx.select().from(authors).where(like(authors.name, `${TAG}-${label}-%`))).length, 10),
    { isolationLevel: 'repeatable read', accessMode: 'read only' },
  );
  equal((await db.select().from(books).where(gte(books.id, 0))).length >= 50, true);
}

part('shared', 'drizzle over node-postgres', async () => {
  const client = new pg.Client(DSN);
  await client.connect();
  await drizzle(overPg({ client }), 'pg');
  await client.end();
});

part('shared', 'drizzle over postgres.js', async () => {
  const client = postgres(DSN, { max: 1 });
  await drizzle(overPostgres({ client }), 'js');
  await client.end();
});

part('shared', 'knex', async () => {
  const knex = knexOver({ client: 'pg', connection: DSN, pool: { min: 0, max: 3 } });
  await Promise.all(range(0, 6).map((n) => knex.transaction(async (trx) => {
    const name = `${TAG}-knex-${n}`;
    const [{ id }] = await trx(`author_${TAG}`).insert({ name }).returning('id');
    await fails('23505', () => trx.transaction((inner) => inner(`author_${TAG}`).insert({ name })));
    await trx.batchInsert(`book_${TAG}`, range(0, 30).map((b) => ({ author: id, title: `${name}/${b}` })), 7);
    let seen = 0;
    for await (const _ of trx(`book_${TAG}`).where({ author: id }).stream()) seen += 1;
    equal(seen, 30);
  })));
  await fails('57014', () => knex.transaction(async (trx) => {
    await trx.raw('SET LOCAL statement_timeout = 50');
    await trx.raw('SELECT pg_sleep(20)');
  }));
  await knex.destroy();
});

part('pinned', 'knex takes its migration lock', async () => {
  const knex = knexOver({ client: 'pg', connection: DSN, pool: { min: 0, max: 2 } });
  const step = (name) => ({
    up: (k) => k.schema.createTable(`${name}_${TAG}`, (t) => { t.increments(); t.string('word'); }),
    down: (k) => k.schema.dropTable(`${name}_${TAG}`),
  });
  const migrationSource = {
    getMigrations: async () => ['one', 'two'],
    getMigrationName: (name) => name,
    getMigration: async (name) => step(name),
  };
  const options = { migrationSource, tableName: `migrations_${TAG}` };
  const [, done] = await knex.migrate.latest(options);
  equal(done, ['one', 'two']);
  await knex.migrate.rollback(options, true);
  await knex.schema.dropTable(`migrations_${TAG}`).dropTable(`migrations_${TAG}_lock`);
  await knex.destroy();
});

part('shared', 'tidy up', async () => {
  const client = new pg.Client(DSN);
  await client.connect();
  await client.query(`DROP TABLE IF EXISTS book_${TAG}; DROP TABLE IF EXISTS author_${TAG}`);
  await client.end();
});

main();
