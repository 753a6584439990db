import com.zaxxer.hikari.HikariConfig;
import com.zaxxer.hikari.HikariDataSource;
import java.io.StringReader;
import java.io.StringWriter;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.sql.Savepoint;
import java.sql.Statement;
import java.util.ArrayList;
import java.util.List;
import java.util.Properties;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import java.util.concurrent.TimeUnit;
import org.postgresql.PGConnection;
import org.postgresql.PGNotification;
import org.postgresql.PGStatement;
import org.postgresql.largeobject.LargeObject;
import org.postgresql.largeobject.LargeObjectManager;

/**
 * pgjdbc with HikariCP: S_n names after some uses, BEGIN in front of Parse, fetch sizes, batches, autosave, savepoints,
 * COPY, large objects, LISTEN, cancel, targetServerType. DSN, TAG and PARTS: see ../python/common.py.
 */
public final class Check {
    private static final String TAG = System.getenv("TAG");
    private static final String TABLE = "t_" + TAG;
    private static final String HOST = System.getenv("PGHOST") + ":" + System.getenv("PGPORT");
    private static final String URL = "jdbc:postgresql://" + HOST + "/" + System.getenv("PGDATABASE");

    private interface Part {
        void run() throws Exception;
    }

    private static Connection connect(String... options) throws SQLException {
        Properties properties = new Properties();
        properties.setProperty("user", System.getenv("PGUSER"));
        properties.setProperty("password", System.getenv("PGPASSWORD"));
        properties.setProperty("ApplicationName", TAG);
        for (int n = 0; n < options.length; n += 2) {
            properties.setProperty(options[n], options[n + 1]);
        }
        return DriverManager.getConnection(URL, properties);
    }

    private static void equal(Object got, Object wanted, String what) {
        if (!wanted.equals(got)) {
            throw new AssertionError(what + ": got " + got + " instead of " + wanted);
        }
    }

    private static SQLException fails(String state, Part part) throws Exception {
        try {
            part.run();
        } catch (SQLException error) {
            if (!state.equals(error.getSQLState())) {
                throw error;
            }
            return error;
        }
        throw new AssertionError("no error " + state);
    }

    private static String one(Connection conn, String sql, Object... values) throws SQLException {
        try (PreparedStatement statement = conn.prepareStatement(sql)) {
            for (int n = 0; n < values.length; n++) {
                statement.setObject(n + 1, values[n]);
            }
            try (ResultSet rows = statement.executeQuery()) {
                rows.next();
                return rows.getString(1);
            }
        }
    }

    private static void schema() throws Exception {
        try (Connection conn = connect(); Statement statement = conn.createStatement()) {
            statement.execute("DROP TABLE IF EXISTS " + TABLE);
            statement.execute("CREATE TABLE " + TABLE + " (id int PRIMARY KEY, word text, number serial)");
            conn.setAutoCommit(false);
            try (PreparedStatement insert =
                    conn.prepareStatement("INSERT INTO " + TABLE + " VALUES (?, ?)", Statement.RETURN_GENERATED_KEYS)) {
                for (int n = 0; n < 500; n++) {
                    insert.setInt(1, n);
                    insert.setString(2, TAG + "-" + n);
                    insert.addBatch();
                }
                equal(insert.executeBatch().length, 500, "batch");
                int keys = 0;
                try (ResultSet generated = insert.getGeneratedKeys()) {
                    while (generated.next()) {
                        keys++;
                    }
                }
                equal(keys, 500, "generated keys");
            }
            conn.commit();
        }
    }

    /** A statement gets a name on the server at its second, third, fifth use, or never; binary transfer with it. */
    private static void prepareThreshold() throws Exception {
        for (String threshold : List.of("0", "1", "3", "5", "-1")) {
            try (Connection conn = connect("prepareThreshold", threshold, "preparedStatementCacheQueries", "4")) {
                for (int turn = 0; turn < 8; turn++) {
                    if (turn % 3 == 0) {
                        conn.setAutoCommit(false);
                    }
                    // More texts than the cache holds: the driver closes the oldest.
                    for (int n = 0; n < 6; n++) {
                        String sql = "SELECT word || '" + n + "' FROM " + TABLE + " WHERE id = ?";
                        equal(one(conn, sql, turn), TAG + "-" + turn + n, "threshold " + threshold);
                    }
                    if (turn % 3 == 0) {
                        conn.commit();
                        conn.setAutoCommit(true);
                    }
                }
            }
        }
        for (String mode : List.of("simple", "extended", "extendedForPrepared", "extendedCacheEverything")) {
            try (Connection conn = connect("preferQueryMode", mode)) {
                for (int n = 0; n < 8; n++) {
                    equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", n), TAG + "-" + n, mode);
                    try (Statement statement = conn.createStatement()) {
                        equal(statement.execute("SELECT 1; SELECT 2"), true, "two at once");
                        equal(statement.getMoreResults(), true, "the second");
                    }
                }
            }
        }
    }

    private static void readsItsWrites() throws Exception {
        try (Connection conn = connect();
                PreparedStatement insert = conn.prepareStatement("INSERT INTO " + TABLE + " VALUES (?, ?)")) {
            one(conn, "SELECT set_config('synchronous_commit', 'local', false)");
            for (int n = 1000; n < 1030; n++) {
                insert.setInt(1, n);
                insert.setString(2, TAG + "+" + n);
                insert.executeUpdate();
                equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", n), TAG + "+" + n, "own write");
            }
            try (Statement statement = conn.createStatement()) {
                statement.execute("RESET synchronous_commit");
                equal(statement.executeUpdate("DELETE FROM " + TABLE + " WHERE id >= 1000"), 30, "deleted");
            }
        }
    }

    private static void transactionsWithErrors() throws Exception {
        for (String autosave : List.of("never", "always", "conservative")) {
            try (Connection conn = connect("autosave", autosave)) {
                conn.setAutoCommit(false);
                String insert = "INSERT INTO " + TABLE + " VALUES (?, 'again') RETURNING id";
                for (int n = 0; n < 8; n++) {
                    int id = n;
                    one(conn, "UPDATE " + TABLE + " SET word = 'x' WHERE id = ? RETURNING id", id);
                    Savepoint savepoint = conn.setSavepoint();
                    fails("23505", () -> one(conn, insert, id));
                    if (autosave.equals("always")) {
                        equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", id), "x", "goes on");
                    } else {
                        fails("25P02", () -> one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", id));
                    }
                    conn.rollback(savepoint);
                    conn.releaseSavepoint(conn.setSavepoint("named"));
                    equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", id), "x", "inside");
                    conn.rollback();
                    equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", id), TAG + "-" + id, "undone");
                    conn.commit();
                }
                // A batch that fails in its middle.
                try (PreparedStatement batch = conn.prepareStatement("INSERT INTO " + TABLE + " VALUES (?, 'b')")) {
                    for (int id : new int[] {2000, 2001, 1, 2002}) {
                        batch.setInt(1, id);
                        batch.addBatch();
                    }
                    fails("23505", batch::executeBatch);
                }
                conn.rollback();
                equal(one(conn, "SELECT count(*) FROM " + TABLE + " WHERE id >= 2000"), "0", "nothing of the batch");
                conn.commit();
            }
        }
    }

    private static void fetchSize() throws Exception {
        try (Connection conn = connect()) {
            conn.setAutoCommit(false);
            for (int turn = 0; turn < 7; turn++) {
                try (PreparedStatement select = conn.prepareStatement("SELECT id FROM " + TABLE + " ORDER BY id")) {
                    select.setFetchSize(37);
                    try (ResultSet rows = select.executeQuery()) {
                        int seen = 0;
                        while (rows.next()) {
                            equal(rows.getInt(1), seen++, "row");
                            if (seen == 100) {
                                equal(one(conn, "SELECT ?::text", TAG), TAG, "between two fetches");
                            }
                        }
                        equal(seen, 500, "rows");
                    }
                }
                conn.commit();
            }
            // Left before its end.
            try (Statement statement = conn.createStatement()) {
                statement.setFetchSize(10);
                ResultSet rows = statement.executeQuery("SELECT generate_series(1, 1000)");
                rows.next();
                equal(rows.getInt(1), 1, "first row");
            }
            conn.rollback();
            conn.setReadOnly(true);
            conn.setTransactionIsolation(Connection.TRANSACTION_REPEATABLE_READ);
            equal(one(conn, "SELECT count(*) FROM " + TABLE), "500", "read only");
            equal(one(conn, "SHOW transaction_isolation"), "repeatable read", "isolation");
            conn.commit();
        }
    }

    private static void copy() throws Exception {
        try (Connection conn = connect()) {
            StringBuilder text = new StringBuilder();
            for (int n = 5000; n < 7000; n++) {
                text.append(n).append('\t').append(TAG).append('~').append(n).append('\n');
            }
            var api = conn.unwrap(PGConnection.class).getCopyAPI();
            equal(api.copyIn("COPY " + TABLE + " (id, word) FROM STDIN", new StringReader(text.toString())), 2000L, "in");
            StringWriter out = new StringWriter();
            String select = "SELECT id, word FROM " + TABLE + " WHERE id >= 5000 ORDER BY id";
            api.copyOut("COPY (" + select + ") TO STDOUT", out);
            equal(out.toString().contentEquals(text), true, "what was copied out is what was copied in");
            String in = "COPY " + TABLE + " (id, word) FROM STDIN";
            fails("22P02", () -> api.copyIn(in, new StringReader("nonsense\tx\n")));
            var given = api.copyIn(in);
            byte[] row = "9000\tx\n".getBytes();
            given.writeToCopy(row, 0, row.length);
            given.cancelCopy();
            try (Statement statement = conn.createStatement()) {
                equal(statement.executeUpdate("DELETE FROM " + TABLE + " WHERE id >= 5000"), 2000, "deleted");
            }
        }
    }

    private static void cancel() throws Exception {
        try (Connection conn = connect(); Statement statement = conn.createStatement()) {
            for (int n = 0; n < 2; n++) {
                var canceller = CompletableFuture.runAsync(() -> {
                    try {
                        Thread.sleep(200);
                        statement.cancel();
                    } catch (Exception error) {
                        throw new IllegalStateException(error);
                    }
                });
                long began = System.nanoTime();
                fails("57014", () -> statement.execute("SELECT pg_sleep(20)"));
                equal(System.nanoTime() - began < 10_000_000_000L, true, "the cancel is in time");
                canceller.get();
                equal(one(conn, "SELECT ?::text", TAG), TAG, "after a cancel");
            }
            statement.setQueryTimeout(1);
            fails("57014", () -> statement.execute("SELECT pg_sleep(20)"));
            equal(one(conn, "SELECT ?::text", TAG), TAG, "after a time-out");
        }
    }

    private static void settings() throws Exception {
        String options = "-c TimeZone=Asia/Tokyo -c statement_timeout=20s";
        try (Connection conn = connect("options", options, "currentSchema", "public,pg_catalog")) {
            conn.setClientInfo("ApplicationName", TAG + "-renamed");
            conn.setSchema("pg_catalog");
            for (int n = 0; n < 10; n++) {
                equal(one(conn, "SHOW statement_timeout"), "20s", "statement_timeout");
                equal(one(conn, "SHOW search_path"), "pg_catalog", "search_path");
                equal(one(conn, "SHOW application_name"), TAG + "-renamed", "application_name");
            }
            equal(conn.isValid(5), true, "valid");
            equal(conn.getMetaData().getTables(null, "pg_catalog", "pg_class", null).next(), true, "meta data");
        }
        for (String type : List.of("any", "primary", "preferSecondary")) {
            Properties properties = new Properties();
            properties.setProperty("user", System.getenv("PGUSER"));
            properties.setProperty("password", System.getenv("PGPASSWORD"));
            properties.setProperty("targetServerType", type);
            String url = "jdbc:postgresql://" + HOST + "," + HOST + "/" + System.getenv("PGDATABASE");
            try (Connection conn = DriverManager.getConnection(url, properties)) {
                equal(one(conn, "SELECT ?::text", TAG), TAG, type);
            }
        }
    }

    private static void pool() throws Exception {
        HikariConfig config = new HikariConfig();
        config.setJdbcUrl(URL);
        config.setUsername(System.getenv("PGUSER"));
        config.setPassword(System.getenv("PGPASSWORD"));
        config.setMaximumPoolSize(4);
        config.setConnectionInitSql("SET my.word = 'configured'");
        config.addDataSourceProperty("ApplicationName", TAG);
        ExecutorService threads = Executors.newFixedThreadPool(8);
        try (HikariDataSource source = new HikariDataSource(config)) {
            List<Future<?>> running = new ArrayList<>();
            for (int worker = 0; worker < 8; worker++) {
                int number = worker;
                running.add(threads.submit(() -> {
                    for (int n = 0; n < 12; n++) {
                        try (Connection conn = source.getConnection()) {
                            conn.setAutoCommit(false);
                            int id = 3000 + number;
                            one(conn, "INSERT INTO " + TABLE + " VALUES (?, ?) RETURNING id", id, TAG);
                            equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = ?", id), TAG, "own write");
                            equal(one(conn, "SHOW my.word"), "configured", "my.word");
                            conn.rollback();
                            conn.setReadOnly(n % 2 == 0);
                            equal(one(conn, "SELECT ?::text || ?", TAG, n), TAG + n, "read");
                            conn.commit();
                        }
                    }
                    return null;
                }));
            }
            for (Future<?> one : running) {
                one.get(30, TimeUnit.SECONDS);
            }
        } finally {
            threads.shutdownNow();
        }
    }

    /** Large objects go by FunctionCall; also in transactions that are READ ONLY, and those of one snapshot. */
    private static void largeObjects() throws Exception {
        try (Connection conn = connect()) {
            conn.setAutoCommit(false);
            LargeObjectManager objects = conn.unwrap(PGConnection.class).getLargeObjectAPI();
            long oid = objects.createLO();
            try (LargeObject made = objects.open(oid, LargeObjectManager.WRITE)) {
                made.write(TAG.repeat(1000).getBytes());
            }
            conn.commit();
            for (int level : List.of(Connection.TRANSACTION_READ_COMMITTED, Connection.TRANSACTION_REPEATABLE_READ)) {
                conn.setReadOnly(true);
                conn.setTransactionIsolation(level);
                equal(one(conn, "SELECT word FROM " + TABLE + " WHERE id = 499"), TAG + "-499", "a read");
                try (LargeObject read = objects.open(oid, LargeObjectManager.READ)) {
                    equal(read.size64(), TAG.length() * 1000L, "size");
                    read.seek64(TAG.length() * 999L, LargeObject.SEEK_SET);
                    equal(new String(read.read(100)), TAG, "the end of it");
                }
                conn.commit();
                conn.setReadOnly(false);
            }
            conn.setTransactionIsolation(Connection.TRANSACTION_READ_COMMITTED);
            objects.unlink(oid);
            conn.commit();
        }
    }

    private static void listen() throws Exception {
        try (Connection listener = connect();
                Connection speaker = connect();
                Statement listens = listener.createStatement()) {
            listens.execute("LISTEN ch_" + TAG);
            for (int n = 0; n < 5; n++) {
                one(speaker, "SELECT pg_notify(?, ?)", "ch_" + TAG, String.valueOf(n));
            }
            StringBuilder heard = new StringBuilder();
            for (int n = 0; n < 50 && heard.length() < 5; n++) {
                PGNotification[] found = listener.unwrap(PGConnection.class).getNotifications(200);
                for (PGNotification one : found == null ? new PGNotification[0] : found) {
                    heard.append(one.getParameter());
                }
            }
            equal(heard.toString(), "01234", "notifications");
            listens.execute("UNLISTEN *");
            listens.execute("CREATE TEMP TABLE mine AS SELECT generate_series(1, 5) AS n");
            PreparedStatement sum = listener.prepareStatement("SELECT sum(n) FROM mine");
            sum.unwrap(PGStatement.class).setPrepareThreshold(1);
            for (int n = 0; n < 5; n++) {
                try (ResultSet rows = sum.executeQuery()) {
                    rows.next();
                    equal(rows.getInt(1), 15, "sum");
                }
            }
            listens.execute("DROP TABLE mine");
            // A cursor that outlives its transaction.
            listener.setAutoCommit(false);
            Statement holds = listener.createStatement(
                    ResultSet.TYPE_FORWARD_ONLY, ResultSet.CONCUR_READ_ONLY, ResultSet.HOLD_CURSORS_OVER_COMMIT);
            holds.execute("DECLARE held CURSOR WITH HOLD FOR SELECT generate_series(1, 10)");
            listener.commit();
            equal(one(listener, "FETCH 1 FROM held"), "1", "held");
            listener.commit();
            equal(one(listener, "FETCH 1 FROM held"), "2", "held");
            holds.execute("CLOSE held");
            listener.commit();
        }
    }

    /** The admin database, of the DSN, as a user who may only look. */
    private static void console() throws Exception {
        java.net.URI dsn = new java.net.URI(System.getenv("DSN"));
        String[] who = dsn.getUserInfo().split(":");
        for (String mode : List.of("simple", "extended", "extendedForPrepared", "extendedCacheEverything")) {
            Properties properties = new Properties();
            properties.setProperty("user", who[0]);
            properties.setProperty("password", who[1]);
            properties.setProperty("preferQueryMode", mode);
            properties.setProperty("prepareThreshold", "2");
            String url = "jdbc:postgresql://" + dsn.getHost() + ":" + dsn.getPort() + dsn.getPath();
            try (Connection conn = DriverManager.getConnection(url, properties)) {
                for (int turn = 0; turn < 4; turn++) {
                    conn.setAutoCommit(turn % 2 == 0);
                    for (String name : List.of("POOLS", "CLIENTS", "SERVERS", "DATABASES", "USERS", "LISTS", "VERSION")) {
                        equal(one(conn, "SHOW " + name) == null, false, name);
                    }
                }
                conn.setAutoCommit(true);
                fails("42601", () -> one(conn, "SHOW nonsense"));
                fails("42501", () -> one(conn, "RELOAD"));
                equal(conn.isValid(5), true, "valid");
            }
        }
    }

    private static void tidyUp() throws Exception {
        try (Connection conn = connect(); Statement statement = conn.createStatement()) {
            statement.execute("DROP TABLE IF EXISTS " + TABLE);
        }
    }

    private static void run(String name, Part part) {
        long began = System.nanoTime();
        try {
            part.run();
        } catch (Throwable error) {
            error.printStackTrace();
            System.err.printf("FAILED %s: %s after %d ms%n", TAG, name, (System.nanoTime() - began) / 1_000_000);
            System.exit(1);
        }
    }

    public static void main(String[] arguments) {
        String parts = System.getenv().getOrDefault("PARTS", "all");
        if (parts.equals("console")) {
            run("console", Check::console);
        }
        if (parts.equals("shared") || parts.equals("all")) {
            run("schema", Check::schema);
            run("prepareThreshold", Check::prepareThreshold);
            run("readsItsWrites", Check::readsItsWrites);
            run("transactionsWithErrors", Check::transactionsWithErrors);
            run("fetchSize", Check::fetchSize);
            run("copy", Check::copy);
            run("largeObjects", Check::largeObjects);
            run("cancel", Check::cancel);
            run("settings", Check::settings);
            run("pool", Check::pool);
            run("tidyUp", Check::tidyUp);
        }
        if (parts.equals("pinned") || parts.equals("all")) {
            run("listen", Check::listen);
        }
        System.out.println("ok " + TAG);
        System.exit(0);
    }
}
