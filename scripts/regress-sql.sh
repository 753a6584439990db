#!/bin/sh
# Fetches the SQL scripts of PostgreSQL's own regression tests, and their data, into DIR, from Debian's source package.
# Needs apt and the network, no rights: it keeps package lists of its own. PostgreSQL's licence lets them be used; none is
# kept here.
set -eu
dir=${1:?usage: regress-sql.sh DIR}
[ -f "$dir/sql/select.sql" ] && [ -d "$dir/data" ] && exit 0
mkdir -p "$dir/apt/etc" "$dir/apt/lists/partial" "$dir/apt/cache/archives/partial" "$dir/src" "$dir/sql"
root=$(cd "$dir" && pwd)
for file in /etc/apt/sources.list.d/*.sources; do
  sed 's/^Types:.*/Types: deb-src/' "$file" >> "$root/apt/etc/src.sources"
  echo >> "$root/apt/etc/src.sources"
done
if [ -f /etc/apt/sources.list ]; then
  sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > "$root/apt/etc/src.list"
fi
options="-qq -o Dir::Etc::sourcelist=/dev/null -o Dir::Etc::sourceparts=$root/apt/etc
  -o Dir::State::lists=$root/apt/lists -o Dir::Cache=$root/apt/cache"
# shellcheck disable=SC2086 # a list of options
apt-get $options update
# A mirror may list a version that it does not have: the first that can be had will do.
cd "$root/src"
# shellcheck disable=SC2086
for version in $(apt-cache $options showsrc postgresql-15 | sed -n 's/^Version: //p' | sort -u -V); do
  apt-get $options source --download-only --tar-only "postgresql-15=$version" && break
done
tar -xf postgresql-15_*.orig.tar.* -C "$root/sql" --wildcards '*/src/test/regress/sql/*.sql' --strip-components=5
tar -xf postgresql-15_*.orig.tar.* -C "$root" --wildcards '*/src/test/regress/data/*' --strip-components=4
# A server of another user reads them.
chmod -R a+rX "$root/data"
ls "$root/sql" | wc -l
