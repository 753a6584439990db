#!/usr/bin/perl
# DBD::Pg: placeholders and server-side prepared statements (dbdpg_p...), COPY, LISTEN, asynchronous queries and
# their cancel, savepoints, errors. TAG and PARTS: see ../python/common.py.
use strict;
use warnings;
use DBI;
use DBD::Pg qw(:async);
use Time::HiRes qw(sleep time);

my ($tag, $parts) = ($ENV{TAG}, $ENV{PARTS} // 'all');
my $table = "t_$tag";

sub connect_it {
    my %more = @_;
    my $dbh = DBI->connect("dbi:Pg:host=$ENV{PGHOST};port=$ENV{PGPORT};dbname=$ENV{PGDATABASE};application_name=$tag",
        $ENV{PGUSER}, $ENV{PGPASSWORD}, { RaiseError => 1, PrintError => 0, AutoCommit => 1, PrintWarn => 0, %more });
    $dbh->do("SET client_min_messages = 'warning'");
    return $dbh;
}

sub equal {
    my ($got, $wanted, $what) = @_;
    $got = 'undef' unless defined $got;
    die sprintf("%s: got '%s' instead of '%s'\n", $what // '', $got, $wanted) unless $got eq $wanted;
}

sub fails {
    my ($state, $dbh, $run) = @_;
    eval { $run->(); 1 } and die "no error $state\n";
    equal($dbh->state, $state, 'SQLSTATE');
}

sub shared {
    my $dbh = connect_it();
    $dbh->do("DROP TABLE IF EXISTS $table");
    $dbh->do("CREATE TABLE $table (id int PRIMARY KEY, word text, bytes bytea)");

    # Prepared once, used over many transactions; by name on the server from the first execute.
    my $insert = $dbh->prepare("INSERT INTO $table (id, word) VALUES (?, ?)");
    my $select = $dbh->prepare("SELECT word FROM $table WHERE id = ?", { pg_prepare_now => 1 });
    $dbh->do('SET synchronous_commit = local');
    for my $n (0 .. 99) {
        $insert->execute($n, "$tag-$n");
        $select->execute($n);
        equal(($select->fetchrow_array)[0], "$tag-$n", 'own write');
        $select->finish;
    }
    $dbh->do('RESET synchronous_commit');
    equal($dbh->selectrow_array("SELECT count(*) FROM $table WHERE id = ANY(?)", undef, [ 1, 2, 3 ]), 3, 'array');
    $insert->execute_array({ ArrayTupleStatus => \my @status }, [ 100 .. 199 ], [ map { "$tag-$_" } 100 .. 199 ]);
    equal(scalar(@status), 100, 'batch');

    # Transactions with errors.
    $dbh->{AutoCommit} = 0;
    for my $n (0 .. 9) {
        $dbh->do("UPDATE $table SET word = 'x' WHERE id = ?", undef, $n);
        $dbh->pg_savepoint('a');
        fails('23505', $dbh, sub { $insert->execute($n, 'again') });
        fails('25P02', $dbh, sub { $select->execute($n) });
        $dbh->pg_rollback_to('a');
        $select->execute($n);
        equal(($select->fetchrow_array)[0], 'x', 'inside');
        $select->finish;
        $dbh->rollback;
        $select->execute($n);
        equal(($select->fetchrow_array)[0], "$tag-$n", 'after the rollback');
        $select->finish;
        $dbh->commit;
        my $once = $dbh->prepare("SELECT ?::int + $n");
        $once->execute(1);
        equal(($once->fetchrow_array)[0], $n + 1);
        undef $once;    # DEALLOCATE of its name
    }
    # A statement that goes away in a failed transaction is not deallocated then.
    my $late = $dbh->prepare("SELECT ?::int");
    $late->execute(1);
    $late->finish;
    fails('22012', $dbh, sub { $dbh->do('SELECT 1/0') });
    undef $late;
    $dbh->rollback;

    # Cursors.
    $dbh->do("DECLARE c CURSOR FOR SELECT id FROM $table ORDER BY id");
    my $seen = 0;
    while (1) {
        my $rows = $dbh->selectall_arrayref('FETCH 37 FROM c');
        last unless @$rows;
        $seen += @$rows;
    }
    equal($seen, 200, 'rows of the cursor');
    $dbh->commit;

    # COPY.
    $dbh->do("COPY $table (id, word) FROM STDIN");
    $dbh->pg_putcopydata("$_\t$tag~$_\n") for 5000 .. 6999;
    $dbh->pg_putcopyend;
    $dbh->do("COPY (SELECT id, word FROM $table WHERE id >= 5000 ORDER BY id) TO STDOUT");
    my ($line, $n) = ('', 5000);
    while ($dbh->pg_getcopydata(\$line) >= 0) { equal($line, "$n\t$tag~$n\n", 'COPY'); $n++ }
    equal($n, 7000, 'rows of COPY');
    equal($dbh->do("DELETE FROM $table WHERE id >= 5000"), 2000, 'deleted');
    $dbh->commit;
    $dbh->{AutoCommit} = 1;

    # Settings.
    $dbh->do("SET TimeZone = 'Asia/Tokyo'");
    for my $turn (1 .. 10) {
        equal($dbh->selectrow_array('SHOW TimeZone'), 'Asia/Tokyo', 'TimeZone');
        equal($dbh->selectrow_array("SELECT ?::text || ?", undef, $tag, $turn), "$tag$turn");
    }

    # Asynchronous, and cancelled.
    for (1 .. 3) {
        $dbh->do('SELECT pg_sleep(20)', { pg_async => PG_ASYNC });
        sleep 0.15;
        my $began = time;
        $dbh->pg_cancel;
        die "the cancel is late\n" if time - $began > 10;
        equal($dbh->selectrow_array('SELECT ?::text', undef, $tag), $tag, 'after a cancel');
    }
    $dbh->do("SET statement_timeout = 100");
    fails('57014', $dbh, sub { $dbh->do('SELECT pg_sleep(20)') });
    $dbh->do("RESET statement_timeout");
    $dbh->do("DROP TABLE $table");
    $dbh->disconnect;
}

sub pinned {
    my ($listener, $speaker) = (connect_it(), connect_it());
    $listener->do("LISTEN ch_$tag");
    $speaker->do("NOTIFY ch_$tag, '$_'") for 0 .. 4;
    my ($heard, $end) = ('', time + 10);
    while (length $heard < 5 and time < $end) {
        while (my $notify = $listener->pg_notifies) { $heard .= $notify->[2] }
        sleep 0.02;
    }
    equal($heard, '01234', 'notifications');
    $listener->do("UNLISTEN *");
    $listener->do("CREATE TEMP TABLE mine (n int)");
    my $insert = $listener->prepare("INSERT INTO mine VALUES (?)");
    $insert->execute($_) for 1 .. 5;
    equal($listener->selectrow_array("SELECT sum(n) FROM mine"), 15, 'temporary table');
    $listener->do("DROP TABLE mine");
    $_->disconnect for $listener, $speaker;
}

shared() if $parts ne 'pinned';
pinned() if $parts ne 'shared';
print "ok $tag\n";
