// database/sql over lib/pq: unnamed P D S then B E S, prepared statements over a pool, COPY, LISTEN, cancel by context.
// DSN, TAG and PARTS: see ../../python/common.py.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/lib/pq"
)

var (
	tag   = os.Getenv("TAG")
	dsn   = os.Getenv("DSN") + "?sslmode=disable&application_name=" + tag
	table = "t_" + tag
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

func fails(code pq.ErrorCode, err error) {
	var known *pq.Error
	if !errors.As(err, &known) || known.Code != code {
		panic(fmt.Sprintf("not %s: %v", code, err))
	}
}

func open() *sql.DB {
	db, err := sql.Open("postgres", dsn)
	check(err)
	db.SetMaxOpenConns(4)
	return db
}

type querier interface {
	QueryRow(query string, args ...interface{}) *sql.Row
}

func text(from querier, query string, args ...interface{}) (value string) {
	check(from.QueryRow(query, args...).Scan(&value))
	return value
}

func schema(db *sql.DB) {
	_, err := db.Exec("DROP TABLE IF EXISTS " + table + "; CREATE TABLE " + table + " (id int PRIMARY KEY, word text)")
	check(err)
	tx, err := db.Begin()
	check(err)
	insert, err := tx.Prepare("INSERT INTO " + table + " VALUES ($1, $2)")
	check(err)
	for n := 0; n < 200; n++ {
		_, err = insert.Exec(n, fmt.Sprint(tag, "-", n))
		check(err)
	}
	check(tx.Commit())
}

// One connection of the pool, where a session is promised its own writes.
func ownWrites(db *sql.DB) {
	ctx := context.Background()
	conn, err := db.Conn(ctx)
	check(err)
	defer conn.Close()
	_, err = conn.ExecContext(ctx, "SET synchronous_commit = local")
	check(err)
	for n := 1000; n < 1030; n++ {
		_, err = conn.ExecContext(ctx, "INSERT INTO "+table+" VALUES ($1, $2)", n, tag)
		check(err)
		var word string
		check(conn.QueryRowContext(ctx, "SELECT word FROM "+table+" WHERE id = $1", n).Scan(&word))
		equal(word, tag, "own write")
	}
	_, err = conn.ExecContext(ctx, "RESET synchronous_commit")
	check(err)
	done, err := conn.ExecContext(ctx, "DELETE FROM "+table+" WHERE id >= 1000")
	check(err)
	rows, _ := done.RowsAffected()
	equal(rows, int64(30), "deleted")
}

func preparedByAPool(db *sql.DB) {
	word, err := db.Prepare("SELECT $1::text || $2::int")
	check(err)
	defer word.Close()
	var workers sync.WaitGroup
	wrong := make(chan interface{}, 8)
	for worker := 0; worker < 8; worker++ {
		workers.Add(1)
		go func(worker int) {
			defer workers.Done()
			defer func() {
				if err := recover(); err != nil {
					wrong <- err
				}
			}()
			for n := 0; n < 20; n++ {
				var got string
				check(word.QueryRow(tag, worker*100+n).Scan(&got))
				equal(got, fmt.Sprint(tag, worker*100+n), "prepared")
				tx, err := db.Begin()
				check(err)
				check(tx.Stmt(word).QueryRow(tag, n).Scan(&got))
				equal(got, fmt.Sprint(tag, n), "prepared, in a transaction")
				equal(text(tx, "SELECT $1::text", tag), tag, "in a transaction")
				check(tx.Rollback())
			}
		}(worker)
	}
	workers.Wait()
	select {
	case err := <-wrong:
		panic(err)
	default:
	}
}

func errorsInTransactions(db *sql.DB) {
	for n := 0; n < 10; n++ {
		tx, err := db.BeginTx(context.Background(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		check(err)
		_, err = tx.Exec("UPDATE "+table+" SET word = 'x' WHERE id = $1", n)
		check(err)
		_, err = tx.Exec("SAVEPOINT a")
		check(err)
		_, err = tx.Exec("INSERT INTO "+table+" VALUES ($1, 'again')", n)
		fails("23505", err)
		_, err = tx.Exec("SELECT $1::int", n)
		fails("25P02", err)
		_, err = tx.Exec("ROLLBACK TO a")
		check(err)
		equal(text(tx, "SELECT word FROM "+table+" WHERE id = $1", n), "x", "inside")
		check(tx.Rollback())
		read, err := db.BeginTx(context.Background(), &sql.TxOptions{ReadOnly: true})
		check(err)
		equal(text(read, "SELECT word FROM "+table+" WHERE id = $1", n), fmt.Sprint(tag, "-", n), "undone")
		_, err = read.Exec("DELETE FROM "+table+" WHERE id = $1", n)
		fails("25006", err)
		check(read.Rollback())
		_, err = db.Exec("SELEC $1", n)
		fails("42601", err)
	}
}

func copyIn(db *sql.DB) {
	tx, err := db.Begin()
	check(err)
	in, err := tx.Prepare(pq.CopyIn(table, "id", "word"))
	check(err)
	for n := 5000; n < 7000; n++ {
		_, err = in.Exec(n, tag)
		check(err)
	}
	_, err = in.Exec()
	check(err)
	check(in.Close())
	equal(text(tx, "SELECT count(*) FROM "+table+" WHERE id >= 5000 AND word = $1", tag), "2000", "rows of COPY")
	check(tx.Rollback())
}

func cancel(db *sql.DB) {
	for n := 0; n < 3; n++ {
		ctx, stop := context.WithTimeout(context.Background(), 150*time.Millisecond)
		began := time.Now()
		_, err := db.ExecContext(ctx, "SELECT pg_sleep($1)", 20)
		stop()
		if err == nil || time.Since(began) > 10*time.Second {
			panic(fmt.Sprint("the cancel: ", err, time.Since(began)))
		}
		equal(text(db, "SELECT $1::text", tag), tag, "after a cancel")
	}
}

func settings() {
	db, err := sql.Open("postgres", dsn+"&timezone=Asia/Tokyo&statement_timeout=20000&binary_parameters=yes")
	check(err)
	defer db.Close()
	db.SetMaxOpenConns(2)
	for n := 0; n < 20; n++ {
		equal(text(db, "SELECT current_setting('TimeZone') || $1::int", n), fmt.Sprint("Asia/Tokyo", n), "TimeZone")
		equal(text(db, "SHOW statement_timeout"), "20s", "statement_timeout")
	}
}

func listen(db *sql.DB) {
	listener := pq.NewListener(dsn, time.Second, time.Second, nil)
	defer listener.Close()
	check(listener.Listen("ch_" + tag))
	for n := 0; n < 5; n++ {
		_, err := db.Exec("SELECT pg_notify($1, $2)", "ch_"+tag, fmt.Sprint(n))
		check(err)
	}
	heard := ""
	for len(heard) < 5 {
		select {
		case one := <-listener.Notify:
			heard += one.Extra
		case <-time.After(10 * time.Second):
			panic("no notification")
		}
	}
	equal(heard, "01234", "notifications")
	check(listener.Ping())
	check(listener.UnlistenAll())
}

func console(db *sql.DB) {
	shows := []string{"POOLS", "CLIENTS", "SERVERS", "DATABASES", "USERS", "LISTS", "CONFIG", "VERSION", "STATE"}
	for _, name := range append(shows, shows...) {
		rows, err := db.Query("SHOW " + name)
		check(err)
		equal(rows.Next(), true, name)
		check(rows.Close())
		prepared, err := db.Prepare("SHOW " + name)
		check(err)
		rows, err = prepared.Query()
		check(err)
		equal(rows.Next(), true, name)
		check(rows.Close())
		check(prepared.Close())
	}
	_, err := db.Exec("SHOW nonsense")
	fails("42601", err)
	_, err = db.Exec("RELOAD")
	fails("42501", err)
	check(db.Ping())
}

func main() {
	defer func() {
		if err := recover(); err != nil {
			fmt.Fprintln(os.Stderr, "FAILED", tag, err)
			panic(err)
		}
	}()
	db := open()
	parts := os.Getenv("PARTS")
	if parts == "console" {
		console(db)
	}
	if parts == "shared" || parts == "all" {
		schema(db)
		ownWrites(db)
		preparedByAPool(db)
		errorsInTransactions(db)
		copyIn(db)
		cancel(db)
		settings()
		_, err := db.Exec("DROP TABLE " + table)
		check(err)
	}
	if parts == "pinned" || parts == "all" {
		listen(db)
	}
	check(db.Close())
	fmt.Println("ok", tag)
}
