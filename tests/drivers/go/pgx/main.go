// pgx 4 and its pool: P D S then B E S, the statement cache, batches, "-- ping", COPY, LISTEN, cancel by context.
// DSN, TAG and PARTS: see ../../python/common.py.
package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/jackc/pgconn"
	"github.com/jackc/pgx/v4"
	"github.com/jackc/pgx/v4/pgxpool"
)

var (
	tag   = os.Getenv("TAG")
	dsn   = os.Getenv("DSN") + "?sslmode=disable&application_name=" + tag
	table = "t_" + tag
	ctx   = context.Background()
)

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func equal(got, wanted interface{}, what string) {
	if got != wanted {
		panic(fmt.Sprintf("%s: got %v instead of %v", what, got, wanted))
	}
}

func fails(code string, err error) {
	var known *pgconn.PgError
	if !errors.As(err, &known) || known.Code != code {
		panic(fmt.Sprintf("not %s: %v", code, err))
	}
}

type querier interface {
	QueryRow(ctx context.Context, sql string, args ...interface{}) pgx.Row
}

func text(from querier, query string, args ...interface{}) (value string) {
	check(from.QueryRow(ctx, query, args...).Scan(&value))
	return value
}

func connect(more string) *pgx.Conn {
	conn, err := pgx.Connect(ctx, dsn+more)
	check(err)
	return conn
}

func schema(conn *pgx.Conn) {
	_, err := conn.Exec(ctx, "DROP TABLE IF EXISTS "+table)
	check(err)
	_, err = conn.Exec(ctx, "CREATE TABLE "+table+" (id int PRIMARY KEY, word text)")
	check(err)
	rows := make([][]interface{}, 0)
	for n := 0; n < 2000; n++ {
		rows = append(rows, []interface{}{n, fmt.Sprint(tag, "-", n)})
	}
	count, err := conn.CopyFrom(ctx, pgx.Identifier{table}, []string{"id", "word"}, pgx.CopyFromRows(rows))
	check(err)
	equal(count, int64(2000), "rows of COPY")
	_, err = conn.Exec(ctx, "SET synchronous_commit = local")
	check(err)
	for n := 3000; n < 3030; n++ {
		_, err = conn.Exec(ctx, "INSERT INTO "+table+" VALUES ($1, $2)", n, tag)
		check(err)
		equal(text(conn, "SELECT word FROM "+table+" WHERE id = $1", n), tag, "own write")
	}
	_, err = conn.Exec(ctx, "RESET synchronous_commit")
	check(err)
	done, err := conn.Exec(ctx, "DELETE FROM "+table+" WHERE id >= 3000")
	check(err)
	equal(done.RowsAffected(), int64(30), "deleted")
}

// Statements by name, by the description only, and without: with a small cache that closes the oldest.
func caches() {
	for _, mode := range []string{"prepare", "describe"} {
		conn := connect("&statement_cache_capacity=4&statement_cache_mode=" + mode)
		for turn := 0; turn < 5; turn++ {
			for n := 0; n < 7; n++ {
				query := fmt.Sprintf("SELECT word || '%d' FROM %s WHERE id = $1", n, table)
				equal(text(conn, query, turn), fmt.Sprintf("%s-%d%d", tag, turn, n), mode)
			}
			check(conn.Ping(ctx))
		}
		check(conn.Close(ctx))
	}
	conn := connect("&statement_cache_capacity=0")
	_, err := conn.Prepare(ctx, "mine", "SELECT $1::text || $2::int")
	check(err)
	for n := 0; n < 20; n++ {
		equal(text(conn, "mine", tag, n), fmt.Sprint(tag, n), "prepared")
	}
	check(conn.Deallocate(ctx, "mine"))
	check(conn.Close(ctx))
	conn = connect("&prefer_simple_protocol=true")
	for n := 0; n < 10; n++ {
		equal(text(conn, "SELECT $1 || $2", tag, fmt.Sprint(n)), fmt.Sprint(tag, n), "simple protocol")
	}
	check(conn.Close(ctx))
}

func batches(conn *pgx.Conn) {
	for turn := 0; turn < 5; turn++ {
		batch := &pgx.Batch{}
		for n := 0; n < 30; n++ {
			batch.Queue("SELECT word FROM "+table+" WHERE id = $1", n)
			batch.Queue("SELECT $1::int", n)
		}
		results := conn.SendBatch(ctx, batch)
		for n := 0; n < 30; n++ {
			equal(text(rows{results}, ""), fmt.Sprint(tag, "-", n), "in a batch")
			var number int
			check(results.QueryRow().Scan(&number))
			equal(number, n, "in a batch")
		}
		check(results.Close())
		failing := &pgx.Batch{}
		failing.Queue("INSERT INTO " + table + " VALUES (4000, 'x')")
		failing.Queue("SELECT 1/$1::int", 0)
		failing.Queue("INSERT INTO " + table + " VALUES (4001, 'x')")
		results = conn.SendBatch(ctx, failing)
		_, err := results.Exec()
		check(err)
		_, err = results.Exec()
		fails("22012", err)
		results.Close()
		equal(text(conn, "SELECT count(*)::text FROM "+table+" WHERE id >= 4000"), "0", "nothing of the batch")
	}
}

type rows struct{ results pgx.BatchResults }

func (r rows) QueryRow(context.Context, string, ...interface{}) pgx.Row { return r.results.QueryRow() }

func transactions(conn *pgx.Conn) {
	for n := 0; n < 10; n++ {
		err := conn.BeginTxFunc(ctx, pgx.TxOptions{IsoLevel: pgx.Serializable}, func(tx pgx.Tx) error {
			_, err := tx.Exec(ctx, "UPDATE "+table+" SET word = 'x' WHERE id = $1", n)
			check(err)
			err = tx.BeginFunc(ctx, func(inner pgx.Tx) error {
				_, err := inner.Exec(ctx, "INSERT INTO "+table+" VALUES ($1, 'again')", n)
				return err
			})
			fails("23505", err)
			equal(text(tx, "SELECT word FROM "+table+" WHERE id = $1", n), "x", "inside")
			return errors.New("undo")
		})
		equal(err.Error(), "undo", "the transaction")
		equal(text(conn, "SELECT word FROM "+table+" WHERE id = $1", n), fmt.Sprint(tag, "-", n), "undone")
	}
	var out bytes.Buffer
	tx, err := conn.Begin(ctx)
	check(err)
	_, err = tx.Exec(ctx, "DECLARE c CURSOR FOR SELECT id FROM "+table+" ORDER BY id")
	check(err)
	for n := 0; n < 5; n++ {
		var id int
		check(tx.QueryRow(ctx, "FETCH 1 FROM c").Scan(&id))
		equal(id, n, "fetched")
		equal(text(tx, "SELECT $1::text", tag), tag, "between fetches")
	}
	_, err = conn.PgConn().CopyTo(ctx, &out, "COPY (SELECT word FROM "+table+" ORDER BY id) TO STDOUT")
	check(err)
	equal(strings.Count(out.String(), "\n"), 2000, "rows of COPY")
	check(tx.Commit(ctx))
}

func pool() {
	config, err := pgxpool.ParseConfig(dsn + "&pool_max_conns=4&timezone=Asia/Tokyo")
	check(err)
	db, err := pgxpool.ConnectConfig(ctx, config)
	check(err)
	defer db.Close()
	done := make(chan interface{}, 8)
	for worker := 0; worker < 8; worker++ {
		go func(worker int) {
			defer func() { done <- recover() }()
			for n := 0; n < 20; n++ {
				equal(text(db, "SELECT $1::text || $2::int", tag, worker*100+n), fmt.Sprint(tag, worker*100+n), "pool")
				equal(text(db, "SHOW timezone"), "Asia/Tokyo", "TimeZone")
			}
		}(worker)
	}
	for worker := 0; worker < 8; worker++ {
		if err := <-done; err != nil {
			panic(err)
		}
	}
}

// A context that ends closes pgx's connection, and asks the server to cancel.
func cancel() {
	for n := 0; n < 2; n++ {
		conn := connect("")
		soon, stop := context.WithTimeout(ctx, 150*time.Millisecond)
		began := time.Now()
		_, err := conn.Exec(soon, "SELECT pg_sleep($1)", 20)
		stop()
		if err == nil || time.Since(began) > 10*time.Second {
			panic(fmt.Sprint("the cancel: ", err, time.Since(began)))
		}
		conn.Close(ctx)
	}
	conn := connect("")
	go func() {
		time.Sleep(150 * time.Millisecond)
		conn.PgConn().CancelRequest(ctx)
	}()
	_, err := conn.Exec(ctx, "SELECT pg_sleep(20)")
	fails("57014", err)
	equal(text(conn, "SELECT $1::text", tag), tag, "after a cancel")
	check(conn.Close(ctx))
}

func listen() {
	listener, speaker := connect(""), connect("")
	_, err := listener.Exec(ctx, "LISTEN ch_"+tag)
	check(err)
	for n := 0; n < 5; n++ {
		_, err = speaker.Exec(ctx, "SELECT pg_notify($1, $2)", "ch_"+tag, fmt.Sprint(n))
		check(err)
	}
	heard := ""
	soon, stop := context.WithTimeout(ctx, 10*time.Second)
	defer stop()
	for len(heard) < 5 {
		one, err := listener.WaitForNotification(soon)
		check(err)
		heard += one.Payload
	}
	equal(heard, "01234", "notifications")
	_, err = listener.Exec(ctx, "UNLISTEN *")
	check(err)
	check(listener.Close(ctx))
	check(speaker.Close(ctx))
}

func console() {
	shows := []string{"POOLS", "CLIENTS", "SERVERS", "DATABASES", "USERS", "LISTS", "CONFIG", "VERSION", "STATE"}
	for _, more := range []string{"", "&statement_cache_mode=describe", "&prefer_simple_protocol=true"} {
		conn := connect(more)
		for _, name := range append(shows, shows...) {
			found, err := conn.Query(ctx, "SHOW "+name)
			check(err)
			equal(found.Next(), true, name)
			found.Close()
			check(found.Err())
			check(conn.Ping(ctx))
		}
		_, err := conn.Exec(ctx, "SHOW nonsense")
		fails("42601", err)
		_, err = conn.Exec(ctx, "RELOAD")
		fails("42501", err)
		check(conn.Close(ctx))
	}
}

func main() {
	defer func() {
		if err := recover(); err != nil {
			fmt.Fprintln(os.Stderr, "FAILED", tag, err)
			panic(err)
		}
	}()
	parts := os.Getenv("PARTS")
	if parts == "console" {
		console()
	}
	if parts == "shared" || parts == "all" {
		conn := connect("")
		schema(conn)
		caches()
		batches(conn)
		transactions(conn)
		pool()
		cancel()
		_, err := conn.Exec(ctx, "DROP TABLE "+table)
		check(err)
		check(conn.Close(ctx))
	}
	if parts == "pinned" || parts == "all" {
		listen()
	}
	fmt.Println("ok", tag)
}
