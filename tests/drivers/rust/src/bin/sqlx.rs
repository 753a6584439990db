//! sqlx: its pool (which pings), the statement cache with Close, fetch as a stream, nested transactions, COPY,
//! PgListener, and futures that are dropped half-way.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::TryStreamExt;
use pgweir_drivers::{SHOWS, part, variable, wants};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgListener, PgPool, PgPoolOptions};
use sqlx::{AssertSqlSafe, Connection, Executor, Row};

struct Program {
    options: PgConnectOptions,
    tag: String,
    table: String,
}

/// The SQLSTATE of what must have failed.
fn code<T>(result: Result<T, sqlx::Error>) -> Result<String> {
    let error = result.err().context("no error")?;
    let database = error.as_database_error().with_context(|| error.to_string())?;
    Ok(database.code().context("no SQLSTATE")?.into_owned())
}

fn text(sql: String) -> AssertSqlSafe<String> {
    AssertSqlSafe(sql)
}

impl Program {
    fn new() -> Result<Self> {
        let tag = variable("TAG")?;
        let options: PgConnectOptions = variable("DSN")?.parse()?;
        let options =
            options.application_name(&tag).options([("work_mem", "5MB")]).statement_cache_capacity(4);
        Ok(Self { options, table: format!("t_{tag}"), tag })
    }

    async fn client(&self) -> Result<PgConnection> {
        Ok(PgConnection::connect_with(&self.options).await?)
    }

    async fn pool(&self, most: u32) -> Result<PgPool> {
        let made = PgPoolOptions::new().max_connections(most).acquire_timeout(Duration::from_secs(20));
        Ok(made.connect_with(self.options.clone()).await?)
    }

    async fn schema(&self) -> Result<()> {
        let table = &self.table;
        let mut client = self.client().await?;
        let sql =
            format!("DROP TABLE IF EXISTS {table}; CREATE TABLE {table} (id int PRIMARY KEY, word text)");
        client.execute(sqlx::raw_sql(text(sql))).await?;
        let (ids, words): (Vec<i32>, Vec<String>) =
            (0..300).map(|n| (n, format!("{}-{n}", self.tag))).unzip();
        let insert = format!("INSERT INTO {table} SELECT * FROM unnest($1::int[], $2::text[])");
        let done = sqlx::query(text(insert)).bind(ids).bind(words).execute(&mut client).await?;
        ensure!(done.rows_affected() == 300, "inserted");
        Ok(client.close().await?)
    }

    async fn statement_cache(&self) -> Result<()> {
        let mut client = self.client().await?;
        for turn in 0..8_i32 {
            for n in 0..7 {
                let sql = format!("SELECT word || '{n}' FROM {} WHERE id = $1", self.table);
                let word: String = sqlx::query_scalar(text(sql)).bind(turn).fetch_one(&mut client).await?;
                ensure!(word == format!("{}-{turn}{n}", self.tag), "{word}");
            }
            let memory: String =
                sqlx::query_scalar("SHOW work_mem").persistent(false).fetch_one(&mut client).await?;
            ensure!(memory == "5MB", "{memory}");
            client.ping().await?;
            if turn % 3 == 2 {
                client.clear_cached_statements().await?;
            }
        }
        Ok(client.close().await?)
    }

    async fn transactions(&self) -> Result<()> {
        let mut client = self.client().await?;
        let table = &self.table;
        let update = format!("UPDATE {table} SET word = 'x' WHERE id = $1");
        let insert = format!("INSERT INTO {table} VALUES ($1, 'again')");
        let select = format!("SELECT word FROM {table} WHERE id = $1");
        client.execute("SET synchronous_commit = local").await?;
        for n in 0..10_i32 {
            let mut tx = client.begin().await?;
            sqlx::query(text(update.clone())).bind(n).execute(&mut *tx).await?;
            let mut inner = tx.begin().await?;
            ensure!(
                code(sqlx::query(text(insert.clone())).bind(n).execute(&mut *inner).await)? == "23505",
                "duplicate"
            );
            ensure!(
                code(sqlx::query(text(select.clone())).bind(n).fetch_one(&mut *inner).await)? == "25P02",
                "failed"
            );
            inner.rollback().await?;
            let word: String = sqlx::query_scalar(text(select.clone())).bind(n).fetch_one(&mut *tx).await?;
            ensure!(word == "x", "inside");
            // Dropped: rolled back with what comes next.
            drop(tx);
            let word: String =
                sqlx::query_scalar(text(select.clone())).bind(n).fetch_one(&mut client).await?;
            ensure!(word == format!("{}-{n}", self.tag), "undone: {word}");
            ensure!(code(sqlx::query("SELEC 1").execute(&mut client).await)? == "42601", "syntax");
            sqlx::query(text(format!("INSERT INTO {table} VALUES ($1, 'own')")))
                .bind(1000 + n)
                .execute(&mut client)
                .await?;
            let word: String =
                sqlx::query_scalar(text(select.clone())).bind(1000 + n).fetch_one(&mut client).await?;
            ensure!(word == "own", "own write");
        }
        Ok(client.close().await?)
    }

    async fn streams_and_copy(&self) -> Result<()> {
        let mut client = self.client().await?;
        let mut rows = sqlx::query("SELECT generate_series(1, 1000) AS n").fetch(&mut client);
        let mut seen = 0;
        while let Some(row) = rows.try_next().await? {
            seen += 1;
            ensure!(row.try_get::<i32, _>("n")? == seen, "row");
            if seen == 500 {
                break;
            }
        }
        // The rest is read over by what comes next.
        drop(rows);
        let mut copy = client.copy_in_raw(&format!("COPY {} FROM STDIN", self.table)).await?;
        for n in 5000..7000 {
            copy.send(format!("{n}\t{}\n", self.tag).into_bytes()).await?;
        }
        ensure!(copy.finish().await? == 2000, "rows of COPY");
        let out = client
            .copy_out_raw(&format!("COPY (SELECT id FROM {} WHERE id >= 5000) TO STDOUT", self.table))
            .await?;
        let length = out.try_fold(0, |n, part| async move { Ok(n + part.len()) }).await?;
        ensure!(length == 2000 * 5, "{length} bytes of COPY");
        let copy = client.copy_in_raw(&format!("COPY {} FROM STDIN", self.table)).await?;
        copy.abort("given up by the program").await?;
        let tag: String = sqlx::query_scalar("SELECT $1").bind(&self.tag).fetch_one(&mut client).await?;
        ensure!(tag == self.tag, "after a COPY");
        Ok(client.close().await?)
    }

    async fn many_tasks(&self) -> Result<()> {
        let pool = self.pool(4).await?;
        let mut tasks = Vec::new();
        for worker in 0..8_i32 {
            let (pool, tag) = (pool.clone(), self.tag.clone());
            tasks.push(tokio::spawn(async move {
                for n in 0..15_i32 {
                    let got: (String, i32) = sqlx::query_as("SELECT $1, $2")
                        .bind(&tag)
                        .bind(worker * 100 + n)
                        .fetch_one(&pool)
                        .await?;
                    ensure!(got == (tag.clone(), worker * 100 + n), "{got:?}");
                    // Dropped half-way: the pool closes the connection or reads over what is left.
                    let sleep = sqlx::query("SELECT pg_sleep(0.05)").execute(&pool);
                    if n % 5 == 0 {
                        let _late = tokio::time::timeout(Duration::from_millis(5), sleep).await;
                    }
                    let mut tx = pool.begin().await?;
                    let n: i32 = sqlx::query_scalar("SELECT $1").bind(n).fetch_one(&mut *tx).await?;
                    if n % 2 == 0 { tx.commit().await? } else { tx.rollback().await? }
                }
                Ok(())
            }));
        }
        for task in tasks {
            task.await??;
        }
        let limit = "SET statement_timeout = 100";
        let mut one = pool.acquire().await?;
        one.execute(limit).await?;
        ensure!(code(one.execute("SELECT pg_sleep(20)").await)? == "57014", "time-out");
        drop(one);
        pool.close().await;
        Ok(())
    }

    async fn listen(&self) -> Result<()> {
        let pool = self.pool(2).await?;
        let mut listener = PgListener::connect_with(&pool).await?;
        listener.listen(&format!("ch_{}", self.tag)).await?;
        for n in 0..5 {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(format!("ch_{}", self.tag))
                .bind(n.to_string())
                .execute(&pool)
                .await?;
        }
        let mut heard = String::new();
        while heard.len() < 5 {
            let one = tokio::time::timeout(Duration::from_secs(10), listener.recv()).await;
            heard += one.context("no notification")??.payload();
        }
        ensure!(heard == "01234", "{heard}");
        listener.unlisten_all().await?;
        drop(listener);
        pool.close().await;
        let mut client = self.client().await?;
        // What sqlx's migrations hold.
        client.execute("SELECT pg_advisory_lock(4714)").await?;
        let tag: String = sqlx::query_scalar("SELECT $1").bind(&self.tag).fetch_one(&mut client).await?;
        ensure!(tag == self.tag, "with a lock");
        client.execute("SELECT pg_advisory_unlock(4714)").await?;
        Ok(client.close().await?)
    }

    async fn console(&self) -> Result<()> {
        let mut client = self.client().await?;
        for name in SHOWS.iter().chain(&SHOWS) {
            let sql = format!("SHOW {name}");
            ensure!(!sqlx::query(text(sql.clone())).fetch_all(&mut client).await?.is_empty(), "{name}");
            ensure!(!client.fetch_all(sqlx::raw_sql(text(sql))).await?.is_empty(), "{name}");
        }
        let row = sqlx::query("SHOW LISTS").fetch_one(&mut client).await?;
        ensure!(row.try_get::<i32, _>("items")? >= 0, "types");
        ensure!(code(sqlx::query("SHOW nonsense").execute(&mut client).await)? == "42601", "nonsense");
        ensure!(code(sqlx::query("RELOAD").execute(&mut client).await)? == "42501", "reload");
        client.ping().await?;
        Ok(client.close().await?)
    }

    async fn tidy_up(&self) -> Result<()> {
        let mut client = self.client().await?;
        client.execute(sqlx::raw_sql(text(format!("DROP TABLE {}", self.table)))).await?;
        Ok(client.close().await?)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let program = Program::new()?;
    if wants("shared") {
        part("schema", program.schema()).await?;
        part("statement cache", program.statement_cache()).await?;
        part("transactions", program.transactions()).await?;
        part("streams and COPY", program.streams_and_copy()).await?;
        part("many tasks", program.many_tasks()).await?;
        part("tidy up", program.tidy_up()).await?;
    }
    if wants("pinned") {
        part("listen", program.listen()).await?;
    }
    if wants("console") {
        part("console", program.console()).await?;
    }
    println!("ok {}", program.tag);
    Ok(())
}
