# Everything that is done here has a name. `make` and `make help` list them.

GO          ?= go
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2
GOVULNCHECK := golang.org/x/vuln/cmd/govulncheck@v1.1.4
VERSION     ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo unknown)
FUZZTIME    ?= 20s

.DEFAULT_GOAL := help
.NOTPARALLEL:
.PHONY: help build build-msk deps test test-unit test-sim test-e2e test-long soak mutations nemesis vulncheck lint fmt fuzz bench bench-compare demo stack compose-check clean

help: ## this list
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

build: ## the static binary, bin/walrelay
	CGO_ENABLED=0 $(GO) build -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/walrelay ./cmd/walrelay

build-msk: ## the same with AWS MSK IAM, which links the AWS SDK
	CGO_ENABLED=0 $(GO) build -modfile=sink/msk.mod -tags msk -trimpath -ldflags '-s -w -X main.version=$(VERSION)' -o bin/walrelay-msk ./cmd/walrelay

deps: ## install what tests and demo need (Debian, as root; else it says what)
	@bash .ci/deps

test: deps lint test-unit test-sim test-e2e ## lint, unit, wire-level and end-to-end tests with the race detector, and the simulation: at most 12 minutes

test-unit: ## unit and wire-level tests alone; they need no server
	bash .ci/gotest . -race -timeout 5m ./...
	bash .ci/gotest . -modfile=sink/msk.mod -tags msk -run MSK ./sink ./cmd/walrelay

test-sim: ## 1000 seeds of the simulation, and a few planted bugs that it must find
	bash .ci/gotest e2e -count=1 -timeout 10m ./sim

soak: ## the simulation with fresh seeds for SOAK=600 seconds
	cd e2e && SIM_SOAK=$(or $(SOAK),600) $(GO) test ./sim -run TestSoak -count=1 -timeout 0 -v

mutations: ## plant every bug of e2e/sim/mutations and print who notices, the table of DESIGN.md; MUTATIONS=part-of-a-name: these only
	cd e2e && SIM_MUTATIONS=$(or $(MUTATIONS),all) $(GO) test ./sim -run TestMutations -count=1 -timeout 0 -v

nemesis: deps build ## faults of every kind on real servers: NEMESIS=60 seconds, SEED=1, POSTGRES=15 to 18, BROKERS=1 or 3, RELAYS=1 or 2; reports in bin/nemesis
	cd e2e && WALRELAY_BIN=$(CURDIR)/bin/walrelay NEMESIS=$(or $(NEMESIS),60) NEMESIS_SEED=$(or $(SEED),1) NEMESIS_POSTGRES=$(POSTGRES) NEMESIS_BROKERS=$(or $(BROKERS),1) \
	  NEMESIS_RELAYS=$(or $(RELAYS),2) NEMESIS_REPORTS=$(CURDIR)/bin/nemesis $(GO) test ./nemesis -run TestNemesis -count=1 -timeout 0 -v

test-e2e: deps build ## the end-to-end tests on a real Postgres and a real Kafka, short versions
	@# The scenarios wait most of the time: the other packages run beside them.
	@WALRELAY_BIN=$(CURDIR)/bin/walrelay bash .ci/gotest e2e -short -count=1 -timeout 20m . >bin/scenarios.out 2>&1 & scenarios=$$!; \
	bash .ci/gotest e2e -race -short -count=1 -p 1 -timeout 10m $$($(GO) -C e2e list ./... | tail -n +2); packages=$$?; \
	wait $$scenarios; code=$$?; cat bin/scenarios.out; [ $$packages = 0 ] && [ $$code = 0 ]

test-long: deps build ## the end-to-end tests in full: about an hour
	SIM_MUTATIONS=all WALRELAY_LONG=1 WALRELAY_BIN=$(CURDIR)/bin/walrelay bash .ci/gotest e2e -count=1 -p 1 -timeout 3h ./...

lint: ## gofmt, go vet and staticcheck, on both modules
	@test -z "$$(gofmt -l .)" || { echo 'not formatted (make fmt):'; gofmt -l .; exit 1; }
	$(GO) vet ./... && $(GO) -C e2e vet ./...
	$(GO) run $(STATICCHECK) ./...
	cd e2e && $(GO) run $(STATICCHECK) ./...

vulncheck: ## known vulnerabilities in what the product calls, as far as their database can be reached
	@bash .ci/vulncheck $(GOVULNCHECK)

fmt: ## format the source
	gofmt -w .

fuzz: ## each fuzz target for FUZZTIME=20s
	@for package in $$($(GO) list ./...); do \
	  for target in $$($(GO) test -list '^Fuzz' $$package | grep '^Fuzz'); do \
	    echo "$$package $$target"; \
	    $(GO) test -run '^$$' -fuzz "^$$target$$" -fuzztime $(FUZZTIME) $$package || exit 1; \
	  done; \
	done

bench: deps build ## speed, latency and cost on a real stack, about five minutes; bin/bench.json has the numbers too
	cd e2e && WALRELAY_BIN=$(CURDIR)/bin/walrelay $(GO) run ./cmd/bench -json $(CURDIR)/bin/bench.json $(BENCH)

bench-compare: deps ## two commits in turns: make bench-compare OLD=v1.2.0 NEW=. (the working tree)
	BENCH='$(BENCH)' bash .ci/benchcompare $(or $(OLD),HEAD) $(or $(NEW),.)

# With the flags of build, so that what it has compiled is not compiled again; and
# not by go run, which would leave the program behind when it is terminated.
demo: build ## a minute of a small shop: relay, Kafka and Postgres are killed in turn, and nothing is lost
	@bash .ci/deps demo || echo 'Going on with what is here.'
	cd e2e && CGO_ENABLED=0 $(GO) build -trimpath -o ../bin/demo ./cmd/demo
	@WALRELAY_BIN=bin/walrelay exec bin/demo

stack: deps ## a real Postgres and Kafka to play with, until Ctrl-C
	cd e2e && $(GO) build -o ../bin/stack ./cmd/stack
	@exec bin/stack

compose-check: ## is docker-compose.yml valid?
	docker-compose -f docker-compose.yml config -q

clean: ## remove what was built
	rm -rf bin
	$(GO) clean -testcache
