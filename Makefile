# The project's commands. `make` alone lists them.
#
# Only Go and make are needed for `make test`; `make deps` adds what makes it
# compare us with independent programs, and what `make lint` needs.

SHELL       := /bin/bash
GO          ?= go
TOOLS       := $(CURDIR)/.tools
PACKAGES    ?= ./...
TESTFLAGS   ?=
FUZZTIME    ?= 60s
BENCHTIME   ?= 1s
BENCHFLAGS  ?=

# Exact versions: a newer linter is a change of its own. govulncheck 1.9.0 asks
# for a module that the module proxy refuses.
GOLANGCI    := github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.15.0
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.8.0
VERSITYGW   := github.com/versity/versitygw/cmd/versitygw@v1.8.0
AXE         := axe-core@4.14.1

# Independent peers of the tests, as Debian packages.
DEBIAN      := libxml2-utils jing python3 python3-zeep python3-aiosmtpd swaks curl sqlite3 nginx-light unzip libhttp-oai-perl chromium \
               mandoc groff-base bash-completion prometheus postgresql

.PHONY: help deps tools test race lint fuzz bench soak golden release

help: ## this list
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

deps: tools ## install the tests' peers (Debian packages) and the lint tools
	@./.ci/peers $(DEBIAN)

tools: $(TOOLS)/.axe-core $(TOOLS)/.golangci-lint $(TOOLS)/.staticcheck $(TOOLS)/.govulncheck $(TOOLS)/.versitygw

# A tool is installed again when this file, and so perhaps its version, changes.
$(TOOLS)/.golangci-lint: Makefile
	GOBIN=$(TOOLS) $(GO) install $(GOLANGCI) && touch $@
$(TOOLS)/.staticcheck: Makefile
	GOBIN=$(TOOLS) $(GO) install $(STATICCHECK) && touch $@
$(TOOLS)/.govulncheck: Makefile
	GOBIN=$(TOOLS) $(GO) install $(GOVULNCHECK) && touch $@

# The tests' S3 server. Debian has none.
$(TOOLS)/.versitygw: Makefile
	GOBIN=$(TOOLS) $(GO) install $(VERSITYGW) && touch $@

# The judge of the console's pages. It comes from the npm registry and only tests use it.
$(TOOLS)/.axe-core: Makefile
	@mkdir -p $(TOOLS)/axe-core
	@if command -v npm >/dev/null; then cd $(TOOLS)/axe-core && npm pack --silent $(AXE) && tar xzf axe-core-*.tgz && rm axe-core-*.tgz && touch $@; \
	else echo "deps: npm is missing, so axe-core judges no page of the console"; fi

test: ## all tests; peers that are missing are named and skipped
	@./.ci/test $(TESTFLAGS) $(PACKAGES)

# The race detector watches all that calls SQLite, but not SQLite itself, which is
# translated C: no race of ours is in there, and it would take most of the time.
UNWATCHED := $(foreach p,sqlite/lib libc/...,-gcflags=modernc.org/$(p)=-race=false)

# Code that starts no goroutine and holds no lock has nothing that races. What only tests
# use is watched in the tests that use it.
RACED = $(if $(filter ./...,$(PACKAGES)),$(sort $(dir $(shell \
	grep -rlE '^[[:space:]]+go (func|[a-z])|"sync(/atomic)?"' --include=*.go --exclude=*_test.go --exclude-dir=testdata --exclude-dir=testenv --exclude-dir=testserver --exclude-dir='.?*' .))),$(PACKAGES))

# A process that ends waits a second for races of those that have not ended yet: for
# tests that start a thousand processes, 10 ms must do. make test and make lint vet.
race: ## the tests that are not heavy, under the race detector, of packages with goroutines
	GORACE="$${GORACE-atexit_sleep_ms=10}" $(GO) test -race $(UNWATCHED) -vet=off -timeout 30m $(TESTFLAGS) $(RACED)

lint: ## golangci-lint, or go vet and staticcheck; govulncheck
	@TOOLS=$(TOOLS) ./.ci/lint

fuzz: ## every fuzz target for FUZZTIME (60s), or all together for FUZZTOTAL
	@FUZZTIME=$(FUZZTIME) ./.ci/fuzz

# The big cases are built by a command of their own, when it is there. BENCHFLAGS are
# its arguments: make bench BENCHFLAGS='-quick -only get'.
bench: ## the Go benchmarks and the big cases, as ratios against their rivals
	$(GO) test -run '^$$' -bench . -benchtime $(BENCHTIME) -benchmem -timeout 60m $(PACKAGES)
	@if [ -d internal/bench ]; then set -x; $(GO) run ./internal/bench $(BENCHFLAGS); fi

soak: race ## the race detector, then long runs: big logs, 1000 rounds of kill -9 each (or BRIDGE_ROUNDS)
	BRIDGE_SOAK=1 $(GO) test -timeout 8h -count 1 $(TESTFLAGS) $(PACKAGES)

# A test with golden files has a flag -update; look at the difference before you
# commit it.
golden: ## write the golden files and the expected output of scripts anew
	$(GO) test -count 1 $$(grep -rl --include='*_test.go' 'flag.Bool("update"' . | xargs -r dirname | sort -u) -update
	@if [ -d cmd/bridge/testdata/script ]; then set -x; UPDATE_SCRIPTS=1 $(GO) test -count 1 ./cmd/bridge; fi
	@git status --short | grep testdata || true

# VERSION=v1.2.3 names the version; without it the tags do.
release: ## build what is released into dist/, and check it
	@./.ci/release
	@./.ci/release-check
