<?php
// PHP's PDO and pgsql extension: a connection per request, pdo_stmt_n names with SQL DEALLOCATE, persistent
// connections, COPY, LISTEN, asynchronous queries and cancel. TAG and PARTS: see ../python/common.py.
declare(strict_types=1);

$tag = getenv('TAG');
$parts = getenv('PARTS') ?: 'all';
$table = "t_$tag";

function equal($got, $wanted, string $what = ''): void
{
    if ($got !== $wanted) {
        throw new Exception("$what: got " . var_export($got, true) . ' instead of ' . var_export($wanted, true));
    }
}

function connect(array $options = []): PDO
{
    $dsn = sprintf('pgsql:host=%s;port=%s;dbname=%s', getenv('PGHOST'), getenv('PGPORT'), getenv('PGDATABASE'));
    return new PDO($dsn, getenv('PGUSER'), getenv('PGPASSWORD'), $options + [PDO::ATTR_ERRMODE => PDO::ERRMODE_EXCEPTION]);
}

function fails(string $state, callable $run): void
{
    try {
        $run();
    } catch (PDOException $error) {
        equal($error->getCode(), $state, 'SQLSTATE of ' . $error->getMessage());
        return;
    }
    throw new Exception("no error $state");
}

function shared(string $tag, string $table): void
{
    $pdo = connect();
    $pdo->exec("DROP TABLE IF EXISTS $table");
    $pdo->exec("CREATE TABLE $table (id int PRIMARY KEY, word text, ok bool)");

    // Each request connects, prepares, and lets go: all use the names pdo_stmt_00000001 and so on.
    for ($n = 0; $n < 20; $n++) {
        $request = connect($n % 2 ? [PDO::ATTR_EMULATE_PREPARES => true] : []);
        $request->exec($n % 3 ? 'SET synchronous_commit = local' : 'RESET synchronous_commit');
        $insert = $request->prepare("INSERT INTO $table VALUES (:id, :word, :ok)");
        foreach ([0, 1, 2] as $k) {
            $insert->execute(['id' => $n * 3 + $k, 'word' => "$tag-$n-$k", 'ok' => 't']);
        }
        $select = $request->prepare("SELECT word FROM $table WHERE id = ?");
        foreach ([0, 1, 2] as $k) {
            $select->execute([$n * 3 + $k]);
            equal($select->fetchColumn(), "$tag-$n-$k", 'own write');
        }
        $insert = $select = null;   // DEALLOCATE
        $again = $request->prepare('SELECT ?::int + 1');
        $again->execute([$n]);
        equal($again->fetchColumn(), $n + 1);
        $request = null;
    }

    // One connection, statements that come and go, in and out of transactions with errors.
    for ($n = 0; $n < 15; $n++) {
        $pdo->beginTransaction();
        $update = $pdo->prepare("UPDATE $table SET word = 'x' WHERE id = ?");
        $update->execute([$n]);
        equal($update->rowCount(), 1);
        $pdo->exec('SAVEPOINT a');
        fails('23505', fn () => $pdo->prepare("INSERT INTO $table VALUES (?, 'again')")->execute([$n]));
        $update = null;     // DEALLOCATE in a failed transaction
        $pdo->exec('ROLLBACK TO SAVEPOINT a');
        $select = $pdo->prepare("SELECT word FROM $table WHERE id = ?");
        $select->execute([$n]);
        equal($select->fetchColumn(), 'x', 'inside');
        $n % 2 ? $pdo->rollBack() : $pdo->exec('ROLLBACK');
        $select->execute([$n]);
        equal(str_starts_with($select->fetchColumn(), "$tag-"), true, 'after the rollback');
        fails('42601', fn () => $pdo->query('SELEC 1'));
        fails('22P02', fn () => $pdo->prepare('SELECT ?::int')->execute(['no number']));
    }
    equal($pdo->pgsqlCopyFromArray($table, array_map(fn ($n) => "$n\t$tag~$n\tt\n", range(5000, 5999))), true);
    $out = $pdo->pgsqlCopyToArray($table);
    equal(count($out), 1060, 'rows of COPY');

    $pdo->exec("SET TIME ZONE 'Asia/Tokyo'");
    $pdo->exec("SET NAMES 'UTF8'");
    for ($n = 0; $n < 10; $n++) {
        equal($pdo->query('SHOW TimeZone')->fetchColumn(), 'Asia/Tokyo', 'TimeZone');
    }
    $pdo->exec('SET statement_timeout = 100');
    fails('57014', fn () => $pdo->query('SELECT pg_sleep(20)'));
    $pdo->exec('RESET statement_timeout');

    // The other extension: names given by the program, several queries in flight, cancel.
    $conn = pg_connect('');
    pg_prepare($conn, 'sum', 'SELECT $1::int + $2::int');
    for ($n = 0; $n < 30; $n++) {
        if ($n % 5 === 0) pg_query($conn, 'BEGIN');
        equal(pg_fetch_result(pg_execute($conn, 'sum', [$n, 1]), 0, 0), (string) ($n + 1));
        if ($n % 5 === 4) pg_query($conn, 'COMMIT');
        equal(pg_fetch_result(pg_query_params($conn, 'SELECT $1::text', [$tag]), 0, 0), $tag);
    }
    equal(@pg_query($conn, 'SELECT 1/0'), false);
    for ($n = 0; $n < 2; $n++) {
        pg_send_query($conn, 'SELECT pg_sleep(20)');
        usleep(150_000);
        $began = microtime(true);
        pg_cancel_query($conn);
        equal(microtime(true) - $began < 10, true, 'the cancel is in time');
        equal(pg_fetch_result(pg_query_params($conn, 'SELECT $1::text', [$tag]), 0, 0), $tag);
    }
    pg_query($conn, 'DEALLOCATE sum');
    pg_close($conn);
    $pdo->exec("DROP TABLE $table");
}

function pinned(string $tag): void
{
    $listener = connect();
    $speaker = connect();
    $listener->exec("LISTEN \"ch_$tag\"");
    foreach (range(0, 4) as $n) {
        $speaker->prepare('SELECT pg_notify(?, ?)')->execute(["ch_$tag", (string) $n]);
    }
    $heard = '';
    for ($n = 0; $n < 50 && strlen($heard) < 5; $n++) {
        $notify = $listener->pgsqlGetNotify(PDO::FETCH_ASSOC, 200);
        $heard .= $notify ? $notify['payload'] : '';
    }
    equal($heard, '01234', 'notifications');
    $listener->exec('UNLISTEN *');
    $listener->exec('CREATE TEMP TABLE mine AS SELECT generate_series(1, 5) AS n');
    equal($listener->query('SELECT sum(n) FROM mine')->fetchColumn(), 15);
    $listener->exec('DROP TABLE mine');
    // PDO declares its cursors WITH HOLD.
    $cursor = $listener->prepare('SELECT generate_series(1, 100)', [PDO::ATTR_CURSOR => PDO::CURSOR_SCROLL]);
    $cursor->execute();
    equal($cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_ABS, 50)[0], 50, 'scrolled');
    equal($cursor->fetch(PDO::FETCH_NUM, PDO::FETCH_ORI_PRIOR)[0], 49, 'scrolled back');
    $cursor = null;
    equal($listener->query("SELECT pg_advisory_lock(4713) IS NULL")->fetchColumn(), false);
    equal($listener->query('SELECT pg_advisory_unlock(4713)')->fetchColumn(), true);
}

try {
    if ($parts !== 'pinned') shared($tag, $table);
    if ($parts !== 'shared') pinned($tag);
} catch (Throwable $error) {
    fwrite(STDERR, "FAILED $tag: $error\n");
    exit(1);
}
echo "ok $tag\n";
