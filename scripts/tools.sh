#!/bin/sh
# Puts other people's programs that look at pgweir into target/tools: Prometheus and promtool, PgBouncer's exporter,
# and Pgpool-II's pcp_*; and the sample files of PgBouncer and Pgpool-II for `pgweir import`. They are Debian's packages,
# unpacked and not installed: no service is started, no right is needed, and the machine stays as it is.
#
# `tools.sh [--fetch]`: does nothing where they are installed, except with --fetch, or were brought before. Where there is
# no apt-get their tests are left out, and this says so.
set -eu

packages="prometheus pgpool2 libpgpool2 pgbouncer prometheus-pgbouncer-exporter
  python3-configargparse python3-prometheus-client python3-decorator python3-psycopg2"
programs="prometheus promtool pcp_node_count pcp_node_info prometheus-pgbouncer-exporter"
samples="/etc/pgpool2/pgpool.conf /etc/pgpool2/pool_hba.conf /etc/pgpool2/pcp.conf /etc/pgbouncer/pgbouncer.ini"

here=$(cd "$(dirname "$0")" && pwd)
place=${CARGO_TARGET_DIR:-$here/../target}/tools
say() { printf '%s\n' "$*" >&2; }

PATH=$PATH:/usr/sbin
are_installed() {
  for program in $programs; do command -v "$program" >/dev/null 2>&1 || return 1; done
  for sample in $samples; do [ -r "$sample" ] || return 1; done
}
if [ "${1:-}" != --fetch ] && are_installed; then exit 0; fi

# Changes with what is to be there and how it is brought (this file), and with the system that it is for.
key=$(cat "$here/tools.sh" /etc/os-release 2>/dev/null | cksum; uname -m)
if [ -f "$place/.key" ] && [ "$(cat "$place/.key")" = "$key" ]; then exit 0; fi
if ! command -v apt-get >/dev/null 2>&1 || ! command -v dpkg >/dev/null 2>&1; then
  say "There is no apt-get here: the tests of Prometheus, PgBouncer's exporter and pcp_* need these installed, and are left out."
  exit 0
fi

say "tools: prometheus, prometheus-pgbouncer-exporter, pgpool2's pcp_*, samples (unpacked into target/tools)"
rm -rf "$place"
mkdir -p "$place/packages" "$place/lists/partial" "$place/cache/archives/partial" "$place/unpacked"
place=$(cd "$place" && pwd)
cd "$place/packages"

# Lists of our own, for when the machine's are missing or too old: whoever runs this need not be root.
ours="-o Dir::State::lists=$place/lists -o Dir::Cache=$place/cache -o APT::Sandbox::User=root -o Debug::NoLocking=1"
# shellcheck disable=SC2086 # lists of words, here and below
download() { apt-get "$@" -q download $packages >&2; }
brought=
if download -o APT::Sandbox::User=root; then brought=yes; else
  for pause in 0 5 20; do
    sleep "$pause"
    say "trying again with fresh package lists"
    # shellcheck disable=SC2086
    if apt-get $ours -q update >&2 && download $ours; then brought=yes; break; fi
  done
fi
[ -n "$brought" ] || { say "Cannot download Debian's packages:" $packages; exit 1; }
for package in ./*.deb; do dpkg -x "$package" "$place/unpacked"; done
# The package's own script puts this one into place, and only unpacked it has not run.
cp "$place/unpacked/usr/share/pgpool2/pgpool.conf" "$place/unpacked/etc/pgpool2/"
for sample in $samples; do
  [ -r "$place/unpacked$sample" ] || { say "Debian's packages do not bring $sample"; exit 1; }
done
rm -rf "$place/packages" "$place/lists" "$place/cache" "$place/unpacked/usr/share" "$place/unpacked/usr/lib/debug"
echo "$key" >"$place/.key"
