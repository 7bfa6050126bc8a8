# Heddle. Every target says what it does: `make help`.
SHELL := /bin/bash
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
COMMIT  ?= $(shell git rev-parse --short HEAD 2>/dev/null)
LDFLAGS := -s -w -X github.com/heddle-mesh/heddle/internal/run.Version=$(VERSION) -X github.com/heddle-mesh/heddle/internal/run.Commit=$(COMMIT)
PROGRAMS := $(patsubst cmd/%/main.go,%,$(wildcard cmd/*/main.go))
APPS := $(patsubst e2e/apps/%/main.go,%,$(wildcard e2e/apps/*/main.go))
GO := CGO_ENABLED=0 go
BIN := bin

.PHONY: help build apps test unit netns demo bench e2e fuzz lint generate images check

help: ## this list
	@awk -F':.*## ' '/^[a-z0-9-]+:.*## / {printf "  %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

build: ## the programs, static, into bin/
	@mkdir -p $(BIN)
	@$(GO) build -trimpath $(BUILD_FLAGS) -ldflags '$(LDFLAGS)' -o $(BIN)/ $(addprefix ./cmd/,$(PROGRAMS))

apps: ## the demo shop's programs into bin/apps/
	@mkdir -p $(BIN)/apps
	@$(GO) build -trimpath -ldflags '-s -w' -o $(BIN)/apps/ $(addprefix ./e2e/apps/,$(APPS))

test: lint ## everything that needs no cluster: vet, staticcheck, arch, unit, golden, scenarios, namespaces, with the race detector (root for the namespaces)
	@HEDDLE_NO_SKIP=$${HEDDLE_NO_SKIP-$$([ "$$(id -u)" = 0 ] && echo 1)} go test -race -count=1 -timeout 15m ./...

unit: ## the same without the race detector and without slow tests, for a quick look
	@go test -short -count=1 -timeout 5m ./...

netns: ## only the tests that make network namespaces (root)
	@HEDDLE_NO_SKIP=1 go test -race -count=1 -timeout 10m ./internal/netfilter/... ./internal/lab/... ./sidecar/intercept/... ./cmd/heddle-sidecar/... ./controlplane/node/... ./cmd/heddle-node/...

# The lab needs no API server: without its client the first build takes a third of the time.
demo bench: BUILD_FLAGS := -tags nokube
demo bench: BIN := bin/nokube
demo: build apps ## the main job: a shop of three services in a lab, with real sidecars, and a report (root); KEEP=1 leaves it running
	@$(GO) build -trimpath -o $(BIN)/demo ./e2e/demo && exec $(BIN)/demo -bin $(BIN) $(if $(KEEP),-keep) $(DEMO_FLAGS)

bench: build apps ## the cost of the data path beside direct and HAProxy, into docs/benchmarks.md (root)
	@$(GO) build -trimpath -o $(BIN)/bench ./e2e/bench && exec $(BIN)/bench -bin $(BIN) $(BENCH_FLAGS)

e2e: build apps ## the behaviours on a kind cluster of three nodes, made and removed here (root, docker); RUN=name runs e2e/name only, KEEP=1 leaves the cluster
	@$(GO) build -trimpath -o bin/e2e-cluster ./e2e/cluster && exec bin/e2e-cluster run -bin bin $(if $(RUN),-run $(RUN)) $(if $(KEEP),-keep) $(E2E_FLAGS)

fuzz: ## each fuzz target for FUZZTIME (default 30s)
	@go list ./... | while read -r p; do \
	  for t in $$(go test -list '^Fuzz' $$p 2>/dev/null | grep '^Fuzz'); do \
	    echo "$$p $$t"; go test -run '^$$' -fuzz "^$$t$$" -fuzztime $${FUZZTIME:-30s} $$p || exit 1; \
	  done; done

lint: ## gofmt, go vet, staticcheck
	@out=$$(gofmt -l $$(git ls-files '*.go')); [ -z "$$out" ] || { echo "not gofmt-ed:"; echo "$$out"; exit 1; }
	@go vet ./...
	@go vet -tags e2e ./e2e/...
	@go vet -tags nokube ./cmd/heddle ./cmd/heddle-controlplane ./cmd/heddle-injector
	@go tool staticcheck ./...
	@go tool staticcheck -tags e2e ./e2e/...

generate: ## code from api/wire/heddle.proto (needs protoc)
	@protoc --plugin=protoc-gen-go=$$(go tool -n protoc-gen-go) --plugin=protoc-gen-go-grpc=$$(go tool -n protoc-gen-go-grpc) \
	  --go_out=. --go_opt=module=github.com/heddle-mesh/heddle --go-grpc_out=. --go-grpc_opt=module=github.com/heddle-mesh/heddle \
	  api/wire/heddle.proto

images: build apps ## container images as archives into bin/images, for docker load or kind load image-archive
	@$(GO) build -trimpath -o bin/e2e-cluster ./e2e/cluster && bin/e2e-cluster images -bin bin -out bin/images -tag $(VERSION)

check: generate lint test ## what CI runs, without a cluster; fails if generated code is stale
	@git diff --exit-code -- api
