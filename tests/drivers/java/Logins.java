import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Properties;

/** pgjdbc: logs in by every method and mode of TLS. Arguments: HOST PORT ROOT_CERT CERT KEY METHODS. A line a way: name, tab, ok or error. */
public final class Logins {
    private static String host;
    private static String port;
    private static String root;
    private static String[] own;

    public static void main(String[] args) {
        host = args[0];
        port = args[1];
        root = args[2];
        own = new String[] {"sslcert", args[3], "sslkey", args[4] + ".pk8"};
        for (String mode : new String[] {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}) {
            say("trust " + mode, "c_trust", "wrong", "sslmode", mode);
        }
        for (String mode : new String[] {"require", "verify-ca", "verify-full"}) {
            say("cert " + mode, "c_cert", "bench", "sslmode", mode, own[0], own[1], own[2], own[3]);
        }
        say("cert of nobody refused", "c_cert", "bench", "sslmode", "require", "sslcert", "/nowhere", "sslkey", "/nowhere");
        for (String method : args[5].split(",")) {
            for (String mode : new String[] {"disable", "allow", "prefer", "require", "verify-ca", "verify-full"}) {
                say(method + " " + mode, "c_" + method, "bench", "sslmode", mode);
            }
            say(method + " wrong", "c_" + method, "wrong", "sslmode", "require");
        }
        for (String binding : new String[] {"disable", "prefer", "require"}) {
            say("scram binding " + binding, "c_scram", "bench", "sslmode", "verify-full", "channelBinding", binding);
        }
        say("peer over tcp refused", "c_peer", "bench", "sslmode", "prefer");
        if (org.postgresql.util.DriverInfo.MAJOR_VERSION > 42 || org.postgresql.util.DriverInfo.MINOR_VERSION >= 7) {
            say("scram direct", "c_scram", "bench", "sslmode", "verify-full", "sslNegotiation", "direct");
        }
    }

    private static void say(String way, String database, String password, String... options) {
        Properties properties = new Properties();
        properties.setProperty("user", "bench");
        properties.setProperty("password", password);
        properties.setProperty("sslrootcert", root);
        properties.setProperty("loginTimeout", "10");
        for (int at = 0; at + 1 < options.length; at += 2) {
            properties.setProperty(options[at], options[at + 1]);
        }
        String url = "jdbc:postgresql://" + host + ":" + port + "/" + database;
        try (Connection connection = DriverManager.getConnection(url, properties);
                ResultSet rows = connection.createStatement().executeQuery("select 1")) {
            rows.next();
            System.out.println(way + "\t" + (rows.getInt(1) == 1 ? "ok" : "another answer"));
        } catch (SQLException error) {
            System.out.println(way + "\tERROR " + error.getSQLState() + " " + error.getMessage().lines().findFirst().orElse(""));
        }
    }
}
