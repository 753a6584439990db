# pgweir: `make help` lists the targets. The comment after `##` is the help text.

CARGO ?= cargo
# Where `make run` keeps its nodes, and the ports it uses.
DIR ?= var/demo
PORT ?= 9999
BASE_PORT ?= 5441
METRICS_PORT ?= 9719
# `DRIVERS=no` leaves the whole programs of other languages out of `make test`, and what they need.
DRIVERS ?= yes
# Options of `make bench`, for example BENCH="--rounds 5 --only select"; see benches/bench.py --help.
BENCH ?=
# How long `make chaos` goes on, and its seed (each run prints the one it used).
CHAOS_SECONDS ?= 300
CHAOS_SEED ?=
# Seconds per target of `make fuzz`, and its seed (each run prints the one it used).
FUZZ_SECONDS ?= 10
FUZZ_SEED ?=

.DEFAULT_GOAL := help
.PHONY: help run test drivers unit lint fmt build regress-sql regress-live bench bench-quick bench-failover chaos fuzz clean
.PHONY: need-test need-drivers build-ci
# What is needed comes first, even with -j; cargo is parallel by itself.
.NOTPARALLEL:

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-20s %s\n", $$1, $$2 }'

run: ## a primary, two standbys and pgweir on port 9999; Ctrl-C stops all of it (PORT=, BASE_PORT=, METRICS_PORT=, DIR=)
	@scripts/need.sh run
	@$(CARGO) build --release -p pgweir
	@exec target/release/pgweir demo $(DIR) --port $(PORT) --base-port $(BASE_PORT) --metrics-port $(METRICS_PORT)

test: need-test $(if $(filter no,$(DRIVERS)),,need-drivers) lint build-ci ## everything that must pass: lint, unit, property, tidy and black-box tests
	@PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -q -s benches
	@if $(CARGO) nextest --version >/dev/null 2>&1; then \
	  $(CARGO) nextest run --workspace --profile ci --cargo-profile ci $(if $(filter no,$(DRIVERS)),-E 'not (binary(drivers) or binary(logins))'); \
	else \
	  $(CARGO) test --workspace --profile ci --no-fail-fast; \
	fi

drivers: need-test need-drivers build-ci ## whole programs and the drivers of other languages through pgweir, as `make test` runs them
	@$(CARGO) nextest run -p pgweir-tests --test drivers --test logins --profile ci --cargo-profile ci

unit: ## only the tests beside the code, in the dev profile
	@$(CARGO) test --workspace --exclude pgweir-tests

lint: ## formatting and clippy; a warning is an error
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets --profile ci -- -D warnings

fmt: ## formats the code
	@$(CARGO) fmt --all

build: ## the release binary: target/release/pgweir
	@$(CARGO) build --release -p pgweir

need-test:
	@scripts/need.sh test

need-drivers:
	@scripts/need.sh drivers
	@tests/drivers/build.sh

build-ci:
	@$(CARGO) build --profile ci -p pgweir

regress-sql: ## PostgreSQL's own regression scripts through the classifier (fetches Debian's source package)
	@scripts/regress-sql.sh target/regress
	@$(CARGO) run -q -p pgweir-router --example regress target/regress/sql

regress-live: need-test build-ci ## the same scripts for real: what runs on a standby that a standby refuses? A quarter of an hour
	@scripts/regress-sql.sh target/regress
	@$(CARGO) run -q --profile ci -p pgweir-tests --example regress_live target/regress

bench: ## the whole table of docs/benchmarks.md, against direct and the installed ones of PgBouncer, Pgpool-II, HAProxy; a quarter of an hour
	@scripts/need.sh bench
	@$(CARGO) build --release -p pgweir
	@python3 benches/bench.py --rounds 5 --seconds 2 --write docs/benchmarks.md $(BENCH)
	@$(if $(BENCH),:,python3 benches/logins.py --write docs/benchmarks.md)

bench-quick: ## the same in a few minutes, printed only
	@scripts/need.sh bench
	@$(CARGO) build --release -p pgweir
	@python3 benches/bench.py --quick $(BENCH)

bench-failover: ## how long nobody can write when the primary is killed, ten times; writes docs/benchmarks.md
	@scripts/need.sh test
	@$(CARGO) build --release -p pgweir
	@python3 benches/failover.py --write docs/benchmarks.md

chaos: need-test build-ci ## random faults for CHAOS_SECONDS=, CHAOS_SEED= to repeat a run; then 20 switchovers by hand
	@PGWEIR_CHAOS_SECONDS=$(CHAOS_SECONDS) $(if $(CHAOS_SEED),PGWEIR_CHAOS_SEED=$(CHAOS_SEED)) PGWEIR_SWITCHOVERS=20 \
	  $(CARGO) test --profile ci -p pgweir-tests --test chaos --test failover -- --nocapture --test-threads=1 random_faults by_hand

fuzz: ## bounded random inputs for the parsers: FUZZ_SECONDS= per target, FUZZ_SEED= to repeat a run
	@$(CARGO) run -q --profile ci -p pgweir-fuzz -- --seconds $(FUZZ_SECONDS) $(if $(FUZZ_SEED),--seed $(FUZZ_SEED))

clean: ## removes the build and the demo's data
	@$(CARGO) clean
	@rm -rf var
