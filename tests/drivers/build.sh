#!/bin/sh
# Puts what the drivers' programs run on into target/drivers: Python's and Node's packages, and the programs of Rust,
# Go and Java. What is there and made from the same files is left alone; then nothing is asked of any network.
#
# `scripts/need.sh drivers` comes first: it brings the languages themselves and the libraries that Debian packages.
set -eu

sources=$(cd "$(dirname "$0")" && pwd)
place=${CARGO_TARGET_DIR:-$sources/../../target}/drivers
mkdir -p "$place"
place=$(cd "$place" && pwd)

say() { printf '%s\n' "$*" >&2; }

# Downloads fail now and then: a few tries, then a clear end.
fetch() {
  what=$1
  shift
  for pause in 3 10 30; do
    "$@" && return 0
    say "downloading $what failed: trying again in $pause s"
    sleep "$pause"
  done
  "$@" && return 0
  say "Cannot download $what for the tests of drivers: see what the last command said above. Is the network there?"
  say "Try again, or leave these tests out: make test DRIVERS=no"
  exit 1
}

# key FILES...: changes with the files' contents and with `version`.
key() { { echo "$version"; cat "$@"; } | cksum; }
is_made() { [ -f "$place/$1/.key" ] && [ "$(cat "$place/$1/.key")" = "$2" ]; }
begin() {
  say "drivers: $1"
  rm -rf "${place:?}/$1"
  mkdir -p "$place/$1"
}
end() { echo "$2" >"$place/$1/.key"; }

python() {
  version=$(python3 -c 'import sys; print(sys.version, sys.prefix)')
  made=$(key "$sources/python/requirements.txt")
  is_made python "$made" && return
  begin python
  python3 -m venv "$place/python"
  fetch "Python's packages" "$place/python/bin/python" -m pip install --quiet --disable-pip-version-check \
    --only-binary :all: --requirement "$sources/python/requirements.txt"
  end python "$made"
}

node() {
  version=$(command node --version)
  made=$(key "$sources/node/package.json")
  is_made node "$made" && return
  begin node
  cp "$sources/node/package.json" "$place/node/"
  fetch "Node's packages" npm --prefix "$place/node" install --silent --no-package-lock --ignore-scripts --no-audit --no-fund
  end node "$made"
}

rust() {
  host=$(rustc -vV | sed -n 's/^host: //p')
  fetch "Rust's crates" cargo fetch --quiet --locked --manifest-path "$sources/rust/Cargo.toml" --target "$host"
  cargo build --quiet --locked --manifest-path "$sources/rust/Cargo.toml" --target-dir "$place/rust"
}

go() {
  version=$(command go version)
  made=$(key "$sources"/go/*/*.go)
  is_made go "$made" && return
  begin go
  for program in pq pgx; do
    # The libraries that Debian packages lie in a GOPATH.
    (cd "$sources/go/$program" && GO111MODULE=off GOFLAGS='' GOPATH=/usr/share/gocode GOCACHE="$place/go-cache" \
      command go build -o "$place/go/$program" .)
  done
  end go "$made"
}

java() {
  version=$(javac -version 2>&1)
  made=$(key "$sources"/java/*.java)
  is_made java "$made" && return
  begin java
  javac -encoding UTF-8 -d "$place/java" -cp /usr/share/java/postgresql.jar:/usr/share/java/HikariCP.jar "$sources"/java/*.java
  end java "$made"
}

python
node
rust
go
java
