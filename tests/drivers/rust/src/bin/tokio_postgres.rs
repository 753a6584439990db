//! tokio-postgres: names s0.., Parse and Describe in a round trip of their own, pipelining by joined futures, row
//! limits, COPY by the extended protocol, LISTEN, cancel tokens.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures_util::future::{join_all, poll_fn, try_join_all};
use futures_util::{SinkExt, TryStreamExt, pin_mut};
use pgweir_drivers::{SHOWS, part, variable, wants};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Config, NoTls};

struct Program {
    config: Config,
    tag: String,
    table: String,
}

/// The SQLSTATE of what must have failed.
fn code<T>(result: Result<T, tokio_postgres::Error>) -> Result<SqlState> {
    let error = result.err().context("no error")?;
    error.code().cloned().with_context(|| error.to_string())
}

impl Program {
    fn new() -> Result<Self> {
        let tag = variable("TAG")?;
        let mut config: Config = variable("DSN")?.parse()?;
        config.application_name(&tag);
        Ok(Self { config, table: format!("t_{tag}"), tag })
    }

    /// A client, and what the server tells without being asked.
    async fn listening(&self) -> Result<(Client, UnboundedReceiver<String>)> {
        let (client, mut connection) = self.config.connect(NoTls).await?;
        let (tell, told) = unbounded_channel();
        tokio::spawn(async move {
            while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
                match message {
                    Ok(AsyncMessage::Notification(one)) => drop(tell.send(one.payload().to_owned())),
                    Ok(_) => {}
                    Err(error) => return eprintln!("connection: {error}"),
                }
            }
        });
        Ok((client, told))
    }

    async fn client(&self) -> Result<Client> {
        Ok(self.listening().await?.0)
    }

    async fn schema(&self) -> Result<()> {
        let table = &self.table;
        let client = self.client().await?;
        let sql = format!(
            "DROP TABLE IF EXISTS {table}; CREATE TYPE mood_{0} AS ENUM ('sad', 'glad');
             CREATE TABLE {table} (id int PRIMARY KEY, word text, mood mood_{0} DEFAULT 'glad')",
            self.tag
        );
        client.batch_execute(&sql).await?;
        let insert = client.prepare(&format!("INSERT INTO {table} (id, word) VALUES ($1, $2)")).await?;
        let words: Vec<String> = (0..300).map(|n| format!("{}-{n}", self.tag)).collect();
        let rows = words.iter().zip(0_i32..).map(|(word, n)| {
            let (client, insert) = (&client, &insert);
            async move { client.execute(insert, &[&n, word]).await }
        });
        ensure!(try_join_all(rows).await?.iter().sum::<u64>() == 300, "inserted");
        Ok(())
    }

    /// Statements are closed when they are dropped, others go on over many transactions.
    async fn prepared(&self) -> Result<()> {
        let mut client = self.client().await?;
        let kept =
            client.prepare(&format!("SELECT word, mood::text FROM {} WHERE id = $1", self.table)).await?;
        for n in 0..40_i32 {
            let passing = client.prepare(&format!("SELECT $1::int + {n}")).await?;
            ensure!(client.query_one(&passing, &[&1_i32]).await?.get::<_, i32>(0) == n + 1, "passing");
            let tx = client.transaction().await?;
            let row = tx.query_one(&kept, &[&n]).await?;
            ensure!(row.get::<_, String>(0) == format!("{}-{n}", self.tag), "kept");
            if n % 2 == 0 {
                tx.commit().await?
            } else {
                tx.rollback().await?
            }
            drop(passing);
            let typed =
                client.query_typed("SELECT $1", &[(&self.tag, tokio_postgres::types::Type::TEXT)]).await?;
            ensure!(typed[0].get::<_, &str>(0) == self.tag, "typed");
        }
        Ok(())
    }

    async fn own_writes(&self) -> Result<()> {
        let client = self.client().await?;
        let table = &self.table;
        client.batch_execute("SET synchronous_commit = local").await?;
        for n in 1000..1030_i32 {
            client
                .execute(&format!("INSERT INTO {table} (id, word) VALUES ($1, $2)"), &[&n, &self.tag])
                .await?;
            let row = client.query_one(&format!("SELECT word FROM {table} WHERE id = $1"), &[&n]).await?;
            ensure!(row.get::<_, String>(0) == self.tag, "own write");
        }
        client.batch_execute("RESET synchronous_commit").await?;
        let gone = client.execute(&format!("DELETE FROM {table} WHERE id >= 1000"), &[]).await?;
        ensure!(gone == 30, "deleted {gone}");
        Ok(())
    }

    async fn errors(&self) -> Result<()> {
        let mut client = self.client().await?;
        let table = &self.table;
        let update = client.prepare(&format!("UPDATE {table} SET word = 'x' WHERE id = $1")).await?;
        let insert = client.prepare(&format!("INSERT INTO {table} (id) VALUES ($1)")).await?;
        let select = client.prepare(&format!("SELECT word FROM {table} WHERE id = $1")).await?;
        for n in 0..10_i32 {
            let mut tx = client.transaction().await?;
            tx.execute(&update, &[&n]).await?;
            let savepoint = tx.transaction().await?;
            ensure!(
                code(savepoint.execute(&insert, &[&n]).await)? == SqlState::UNIQUE_VIOLATION,
                "duplicate"
            );
            ensure!(
                code(savepoint.query(&select, &[&n]).await)? == SqlState::IN_FAILED_SQL_TRANSACTION,
                "failed"
            );
            savepoint.rollback().await?;
            ensure!(tx.query_one(&select, &[&n]).await?.get::<_, &str>(0) == "x", "inside");
            // Dropped: rolled back behind the program's back.
            drop(tx);
            let word = format!("{}-{n}", self.tag);
            ensure!(client.query_one(&select, &[&n]).await?.get::<_, String>(0) == word, "undone");
            ensure!(code(client.prepare("SELEC 1").await)? == SqlState::SYNTAX_ERROR, "syntax");
        }
        // Many in flight, some of which fail.
        let divide = client.prepare("SELECT 10 / $1::int").await?;
        let answers = join_all((0..50_i32).map(|n| {
            let (client, divide) = (&client, &divide);
            async move { client.query_one(divide, &[&(n % 5)]).await }
        }));
        for (n, answer) in answers.await.into_iter().enumerate() {
            match n % 5 {
                0 => ensure!(code(answer)? == SqlState::DIVISION_BY_ZERO, "in flight"),
                n => ensure!(answer?.get::<_, i32>(0) == 10 / i32::try_from(n)?, "in flight"),
            }
        }
        Ok(())
    }

    async fn portals_and_copy(&self) -> Result<()> {
        let mut client = self.client().await?;
        let table = &self.table;
        let tx = client.transaction().await?;
        let portal = tx.bind(&format!("SELECT id FROM {table} ORDER BY id"), &[]).await?;
        let mut seen = 0;
        loop {
            let rows = tx.query_portal(&portal, 37).await?;
            if rows.is_empty() {
                break;
            }
            seen += rows.len();
        }
        ensure!(seen == 300, "{seen} rows of the portal");
        let sink = tx.copy_in(&format!("COPY {table} (id, word) FROM STDIN")).await?;
        pin_mut!(sink);
        for n in 5000..7000 {
            sink.feed(bytes::Bytes::from(format!("{n}\t{}\n", self.tag))).await?;
        }
        ensure!(sink.finish().await? == 2000, "rows of COPY");
        let out = tx.copy_out(&format!("COPY (SELECT id FROM {table} WHERE id >= 5000) TO STDOUT")).await?;
        let text: Vec<u8> = out
            .try_fold(Vec::new(), |mut all, part| async move {
                all.extend(part);
                Ok(all)
            })
            .await?;
        ensure!(text.iter().filter(|byte| **byte == b'\n').count() == 2000, "rows of COPY");
        tx.rollback().await?;
        // A COPY that the program gives up.
        let sink = client.copy_in::<_, bytes::Bytes>(&format!("COPY {table} (id, word) FROM STDIN")).await?;
        drop(Box::pin(sink));
        let row = client.query_one(&format!("SELECT count(*) FROM {table}"), &[]).await?;
        ensure!(row.get::<_, i64>(0) == 300, "nothing of the COPY");
        let many = client.query_raw("SELECT generate_series(1, 1000)", Vec::<i32>::new()).await?;
        ensure!(
            many.map_err(anyhow::Error::from).try_fold(0, |n, _| async move { Ok(n + 1) }).await? == 1000,
            "rows"
        );
        Ok(())
    }

    async fn cancel(&self) -> Result<()> {
        let client = self.client().await?;
        for _ in 0..3 {
            let token = client.cancel_token();
            let sleeping = client.query("SELECT pg_sleep(20)", &[]);
            let cancelling = async {
                tokio::time::sleep(Duration::from_millis(150)).await;
                token.cancel_query(NoTls).await
            };
            let (slept, cancelled) =
                tokio::join!(tokio::time::timeout(Duration::from_secs(10), sleeping), cancelling);
            cancelled?;
            ensure!(
                code(slept.context("the cancel does not arrive")?)? == SqlState::QUERY_CANCELED,
                "cancelled"
            );
            ensure!(
                client.query_one("SELECT $1::text", &[&self.tag]).await?.get::<_, &str>(0) == self.tag,
                "after"
            );
        }
        let settings = self.config.clone().options("-c TimeZone=Asia/Tokyo").connect(NoTls).await?;
        tokio::spawn(settings.1);
        for _ in 0..10 {
            let row = settings.0.query_one("SELECT current_setting('TimeZone')", &[]).await?;
            ensure!(row.get::<_, &str>(0) == "Asia/Tokyo", "TimeZone");
        }
        Ok(())
    }

    async fn listen(&self) -> Result<()> {
        let (listener, mut told) = self.listening().await?;
        let speaker = self.client().await?;
        listener.batch_execute(&format!("LISTEN ch_{}", self.tag)).await?;
        for n in 0..5 {
            speaker
                .execute("SELECT pg_notify($1, $2)", &[&format!("ch_{}", self.tag), &n.to_string()])
                .await?;
        }
        let mut heard = String::new();
        while heard.len() < 5 {
            let one = tokio::time::timeout(Duration::from_secs(10), told.recv()).await;
            heard += &one.context("no notification")?.context("the connection is gone")?;
        }
        ensure!(heard == "01234", "{heard}");
        listener.batch_execute("UNLISTEN *; CREATE TEMP TABLE mine (n int)").await?;
        for n in 0..5_i32 {
            listener.execute("INSERT INTO mine VALUES ($1)", &[&n]).await?;
        }
        ensure!(listener.query_one("SELECT sum(n) FROM mine", &[]).await?.get::<_, i64>(0) == 10, "sum");
        listener.batch_execute("DROP TABLE mine").await?;
        Ok(())
    }

    async fn console(&self) -> Result<()> {
        let client = self.client().await?;
        for name in SHOWS.iter().chain(&SHOWS) {
            let sql = format!("SHOW {name}");
            ensure!(!client.query(&sql, &[]).await?.is_empty(), "{name}");
            ensure!(client.simple_query(&sql).await?.len() > 1, "{name}");
        }
        ensure!(client.query("SHOW LISTS", &[]).await?[0].get::<_, i32>("items") >= 0, "types");
        ensure!(code(client.query("SHOW nonsense", &[]).await)? == SqlState::SYNTAX_ERROR, "nonsense");
        ensure!(code(client.query("RELOAD", &[]).await)? == SqlState::INSUFFICIENT_PRIVILEGE, "reload");
        client.check_connection().await?;
        Ok(())
    }

    async fn tidy_up(&self) -> Result<()> {
        let client = self.client().await?;
        Ok(client.batch_execute(&format!("DROP TABLE {}; DROP TYPE mood_{}", self.table, self.tag)).await?)
    }
}

#[tokio::main(worker_threads = 2)]
async fn main() -> Result<()> {
    let program = Program::new()?;
    if wants("shared") {
        part("schema", program.schema()).await?;
        part("prepared", program.prepared()).await?;
        part("own writes", program.own_writes()).await?;
        part("errors", program.errors()).await?;
        part("portals and COPY", program.portals_and_copy()).await?;
        part("cancel", program.cancel()).await?;
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
