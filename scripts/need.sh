#!/bin/sh
# Makes sure that what a make target needs is installed: `need.sh run|test|drivers|bench [--check]`.
#
# Installs with apt-get when it may (root, or sudo without a password); otherwise, and with --check, says what to
# install and fails. It changes nothing when everything is there, and never upgrades a package that is there.
set -eu

minimum=13
what=${1:?usage: need.sh run|test|drivers|bench [--check]}
mode=${2:-install}

have() { command -v "$1" >/dev/null 2>&1; }
say() { printf '%s\n' "$*" >&2; }

# The newest directory with a PostgreSQL server (and initdb) in it, or nothing.
server_bin() {
  {
    have pg_config && pg_config --bindir 2>/dev/null
    for dir in /usr/lib/postgresql/*/bin /usr/pgsql-*/bin /usr/local/pgsql/bin /opt/homebrew/opt/postgresql*/bin; do
      echo "$dir"
    done
    # What is on the path is often a link or a wrapper: its target is where the rest of the server is.
    for name in initdb postgres; do
      have "$name" && dirname "$(readlink -f "$(command -v "$name")")"
    done
  } | while read -r dir; do
    [ -x "$dir/postgres" ] && [ -x "$dir/initdb" ] || continue
    version=$("$dir/postgres" --version | sed -n 's/^[^0-9]*\([0-9][0-9]*\).*/\1/p')
    [ "${version:-0}" -ge "$minimum" ] && echo "$version $dir"
  done | sort -n | tail -n 1 | cut -d' ' -f2-
}

# pg_stat_statements stands for the contrib modules, which Debian ships with the server and others do not.
has_contrib() {
  bin=$(server_bin)
  [ -n "$bin" ] || return 1
  config=$bin/pg_config
  # Without the development files there is no pg_config beside the server: Debian's layout is known.
  if [ -x "$config" ]; then share=$("$config" --sharedir); else share=/usr/share/postgresql/$(basename "$(dirname "$bin")"); fi
  [ -f "$share/extension/pg_stat_statements.control" ]
}

missing=
need() { missing="$missing $1"; }

# need_file PATH PACKAGE, need_library PACKAGE COMMAND...: what the command does not find is missing.
need_file() { [ -e "$1" ] || need "$2"; }
need_library() {
  package=$1
  shift
  "$@" >/dev/null 2>&1 || need "$package"
}

# The languages of the drivers that the tests run, and the libraries that are no packages of a language's own registry.
need_drivers() {
  need_library python3-venv python3 -c 'import venv, ensurepip'
  have node || need nodejs
  have npm || need npm
  have javac || need default-jdk-headless
  need_file /usr/share/java/postgresql.jar libpostgresql-jdbc-java
  need_file /usr/share/java/HikariCP.jar libhikaricp-java
  need_file /usr/share/java/slf4j-nop.jar libslf4j-java
  have go || need golang-go
  need_file /usr/share/gocode/src/github.com/lib/pq golang-github-lib-pq-dev
  need_file /usr/share/gocode/src/github.com/jackc/pgx/v4 golang-github-jackc-pgx-v4-dev
  need_library libdbd-pg-perl perl -MDBD::Pg -e 1
  have php || need php-cli
  need_library php-pgsql php -r 'exit(extension_loaded("pdo_pgsql") && extension_loaded("pgsql") ? 0 : 1);'
  have ruby || need ruby
  need_library ruby-pg ruby -e 'require "pg"'
  need_library ruby-activerecord ruby -e 'require "active_record"'
}

have cargo || { say "cargo is missing: install the Rust toolchain with rustup, then try again"; exit 1; }
have cc || need gcc
[ "$(uname -s)" != Linux ] || [ -e /usr/include/stdlib.h ] || need libc6-dev
[ -n "$(server_bin)" ] || need postgresql
have psql || [ -x "$(server_bin)/psql" ] || need postgresql-client
case $what in
  run) ;;
  # valgrind counts what a transaction costs.
  test) has_contrib || need postgresql-contrib; have python3 || need python3; have valgrind || need valgrind
        have openssl || need openssl; have slapd || [ -x /usr/sbin/slapd ] || need slapd ;;
  drivers) has_contrib || need postgresql-contrib; have python3 || need python3; have openssl || need openssl
           need_drivers ;;
  bench) have pgbench || [ -x "$(server_bin)/pgbench" ] || need postgresql-contrib; have python3 || need python3 ;;
  *) say "need.sh: unknown target '$what' (run, test, drivers or bench)"; exit 64 ;;
esac
# What is not installed but unpacked below target/: nobody has to be root for it.
bring_tools() { [ "$what" != test ] || [ "$mode" != install ] || sh "$(dirname "$0")/tools.sh"; }
if [ -z "$missing" ]; then
  bring_tools
  exit
fi

advise() {
  say "missing:$missing (PostgreSQL $minimum or newer). Install it, then try again:"
  say "  Debian, Ubuntu:  sudo apt-get install$missing"
  if [ "$what" = drivers ]; then
    say "Elsewhere these tests are left out with: make test DRIVERS=no"
    exit 1
  fi
  say "  Fedora, RHEL:    sudo dnf install postgresql-server postgresql-contrib gcc python3"
  say "  Arch:            sudo pacman -S postgresql gcc python"
  say "  Alpine:          apk add postgresql postgresql-contrib gcc musl-dev python3"
  exit 1
}

[ "$mode" = install ] || advise
have apt-get || advise
if [ "$(id -u)" = 0 ]; then as_root=
elif have sudo && sudo -n true 2>/dev/null; then as_root=sudo
else advise
fi

# Debian's package makes and starts a cluster of its own on 5432; nobody asked for that one here.
conf=/etc/postgresql-common/createcluster.d/pgweir-setup.conf
fresh=
if [ ! -e /usr/share/postgresql-common ]; then
  fresh=yes
  $as_root mkdir -p "$(dirname "$conf")"
  echo "create_main_cluster = false" | $as_root tee "$conf" >/dev/null
fi
cleanup() { [ -z "$fresh" ] || $as_root rm -f "$conf"; }
trap cleanup EXIT

install() {
  # shellcheck disable=SC2086 # a list of package names, and an optional sudo
  $as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y -q --no-install-recommends --no-upgrade $missing >&2
}
say "installing:$missing"
if ! install; then
  say "trying again with fresh package lists"
  $as_root apt-get update -q >&2
  install
fi
# A second look, without installing: a package that did not bring what it should is said, not ignored.
sh "$0" "$what" --check
bring_tools
