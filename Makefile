# Every step of building, testing and running Millrace is a target here;
# `make help` lists them. The default builds, tests and lints.
#
# build, test, run, up and down need Go, g++ and make, and nothing else.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.ONESHELL:
.DELETE_ON_ERROR:
MAKEFLAGS += --warn-undefined-variables --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := all

GO ?= go
BIN := build/bin
TOOLS := build/tools

# File names in programs and tests begin with the module's path and not with this folder's, so that a clone in another folder
# finds in Go's cache what this one compiled.
export GOFLAGS := $(strip $(shell $(GO) env GOFLAGS) -trimpath)
# 1: a build prints the path of each package that it compiles, not their number.
V ?=
PROGRESS := $(if $(filter 1,$(V)),cat,awk -v terminal="$$(test -t 2 && echo 1)" -f tools/progress.awk)

# Printed by --version.
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
LDFLAGS := -X github.com/millrace/millrace/services/internal/version.Version=$(VERSION)
# Build tags; xds: clients take targets xds:///NAME.
TAGS ?=
# The first words of the story of make run.
PROMPT ?= Once upon a time
# Compose profile to start in addition to the default services: empty, gpu, monitoring, tracing, or sim, which stands in for the CPU workers.
PROFILE ?=
# CPU workers that make compose-up starts; empty: 2, or with PROFILE=sim none.
CPU_WORKERS ?=
# GPUs for which compose-up PROFILE=gpu starts a worker; empty: those that nvidia-smi lists. docker-compose.yml has services for 8.
GPUS ?=
# Sections of make rig-test, separated by commas; empty: all.
RIG ?=
# Base of the GPU workers' image; empty: ubuntu:24.04.
CUDA_BASE_IMAGE ?=
# How long each fuzz target runs: seconds, minutes or hours.
FUZZTIME ?= 5m
# Which of them run: a regular expression of their names.
FUZZ ?= .
# The database of make vuln; file://DIR: a copy of it.
VULNDB ?= https://vuln.go.dev
# What make bench measures.
BENCH ?= engine
# Flags of make chaos.
CHAOS ?=
# How long make soak sends random requests.
SOAK ?= 20m
# A hung test ends with the stacks of all goroutines after this long.
TEST_TIMEOUT ?= 30m
# Flags of every go test besides.
TEST_FLAGS ?=
# Paths of the CPU engine that make test-paths forces: those of this processor.
CPU_PATHS ?= $(if $(shell grep -m1 -w amx_int8 /proc/cpuinfo),amx) $(if $(shell grep -m1 -w avx512_bf16 /proc/cpuinfo),avx512bf16) $(if $(shell grep -m1 -w avx512_vnni /proc/cpuinfo),avx512vnni) $(if $(shell grep -m1 -w avx2 /proc/cpuinfo),avx2) portable

# The version that go.mod of tools/ pins for module $(1).
pinned = $(shell awk '$$1 == "require" { $$1 = $$2; $$2 = $$3 } $$1 == "$(1)" && $$2 ~ /^v/ { print $$2; exit }' tools/go.mod)
# The stamp of tool $(1) from module $(2): it carries the version, so a new pin installs the tool again.
stamp = $(TOOLS)/.$(1)-$(call pinned,$(2))

BUF := $(call stamp,buf,github.com/bufbuild/buf)
PROTOC_GEN_GO := $(call stamp,protoc-gen-go,google.golang.org/protobuf)
PROTOC_GEN_GO_GRPC := $(call stamp,protoc-gen-go-grpc,google.golang.org/grpc/cmd/protoc-gen-go-grpc)
GOLANGCI_LINT := $(call stamp,golangci-lint,github.com/golangci/golangci-lint/v2)
GOVULNCHECK := $(call stamp,govulncheck,golang.org/x/vuln)
GRPCURL := $(call stamp,grpcurl,github.com/fullstorydev/grpcurl)
GHZ := $(call stamp,ghz,github.com/bojand/ghz)
# Those of releases are a module of their own, so that what they need reaches no other tool.
NFPM := $(TOOLS)/.nfpm-$(shell awk '$$1 == "github.com/goreleaser/nfpm/v2" { print $$2 }' tools/release/go.mod)
SBOM := $(TOOLS)/sbom
WHEEL := $(TOOLS)/wheel

.PHONY: help
help: ## Show every target with one line about it
	@awk -F ':.*## ' '/^[a-z][a-z0-9-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))

.PHONY: all
all: build test lint ## Build, test and lint

## Build

# $(call binary,NAME,PACKAGE): -v is the progress of a cold build.
define binary
	echo 'building $(BIN)/$(1)'
	$(GO) build -v -tags '$(TAGS)' -ldflags '$(LDFLAGS)' -o $(BIN)/$(1) $(2) 2>&1 | $(PROGRESS) >&2
endef

.PHONY: build
build: ## Build the five programs into build/bin; V=1 names each package that is compiled
	@export CGO_ENABLED=1
	$(call binary,millrace-worker,./services/gpuworker)
	$(call binary,millrace-bench,./services/bench)
	export CGO_ENABLED=0
	$(call binary,millrace-scheduler,./services/scheduler)
	$(call binary,millrace-gateway,./services/gateway)
	$(call binary,millrace,./services/millrace)

.PHONY: cross
cross: ## Compile everything for arm64 too; needs g++-aarch64-linux-gnu
	@# With cgo throughout: that scheduler, gateway and client do without is what build proves, and what they link is compiled once this way.
	export GOARCH=arm64 CGO_ENABLED=1 CC=aarch64-linux-gnu-gcc CXX=aarch64-linux-gnu-g++
	$(GO) build -o build/arm64/ ./services/gpuworker ./services/bench ./services/scheduler ./services/gateway ./services/millrace

# Compute capabilities of the CUDA engine, divided by semicolons; empty: those of 80;86;89;90a;100;120 that nvcc can.
CUDA_ARCHITECTURES ?=

.PHONY: cuda
cuda: ## Build the CUDA engine, its tests and benchmarks into build/cuda; needs nvcc, cmake and ninja
	@cmake -S cuda -B build/cuda -G Ninja -DCMAKE_BUILD_TYPE=Release '-DMILLRACE_CUDA_ARCHITECTURES=$(CUDA_ARCHITECTURES)'
	cmake --build build/cuda

.PHONY: gpu-bundle
gpu-bundle: build ## Pack sources, programs and tests into build/gpu-bundle, for a GPU host with nvcc and cmake but no Go
	@cuda/gpu-bundle.sh build/gpu-bundle

.PHONY: clean
clean: ## Remove build/, installed tools included
	rm -rf build

## Check

.PHONY: test
test: ## Run every test that needs no GPU; at the end, the skipped ones and the command that installs the missing packages
	@$(GO) build -o build/testreport ./internal/testreport
	# The SDKs are compiled here alone: two minutes of a processor.
	{ $(GO) test -json $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./... && cd services/gateway/sdktest &&
		$(GO) test -json $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./... ; } | build/testreport

# The race detector makes a token twenty times as dear, takes memory of its own, and makes pools forgetful: under it the crowds of
# some tests are smaller or stay away, and what a decision allocates is not counted. Left out are packages without goroutines of
# their own, and the native programs, which the detector does not see: what they compute is the same, only slower.
RACELESS := /services/bench/|/services/millrace/internal/(plot|render|failure)|/services/gateway/internal/(anthropic|ollama|openai|responses|strictjson)|/gpuworker/(gguf|tokenizer|template|synth|arch|modeltest|vram|sametest|selfcheck)|/internal/(archtest|testreport|doctable|manpages|safetensors|vectorfile|codebookfile)|/cuda($$|/cpu)|/engine/reference
# The reference of the engines does arithmetic. Matmul alone has goroutines, and each writes columns of its own. It is compiled without
# the detector, under which the tests of the client's vector commands took five minutes.
UNWATCHED := -gcflags=github.com/millrace/millrace/gpuworker/engine/reference/...=-race=false
RACE_TEST = $(GO) test -race $(UNWATCHED) $(TEST_FLAGS) -timeout $(TEST_TIMEOUT)
# Two goroutines in a bubble of testing/synctest may receive from expired timers at once. Go 1.26 then uses one race context twice, and
# the detector crashes (https://go.dev/issue/78156). Programs with bubbles have one processor each, which excludes that; as many
# programs run at once as there are processors. Because of -exec their results are not cached. No package with bubbles: the recipe fails.
.PHONY: test-race
test-race: ## Run the tests of packages whose goroutines share memory, under the race detector
	@packages=$$($(GO) list ./... | grep -vE '$(RACELESS)')
	bubbles=$$($(GO) list -f '{{.ImportPath}} {{.TestImports}} {{.XTestImports}}' $$packages | grep -F testing/synctest | cut -d ' ' -f 1)
	status=0
	$(RACE_TEST) -parallel "$$(nproc)" -exec 'env GOMAXPROCS=1' $$bubbles || status=1
	$(RACE_TEST) $$(grep -vxF "$$bubbles" <<<"$$packages") || status=1
	exit $$status

.PHONY: test-paths
test-paths: ## Run every test that computes on the CPU engine once for each of CPU_PATHS, none shortened
	@packages=$$(grep -rl --include='*_test.go' '"github.com/millrace/millrace/internal/cputest"' . | xargs dirname | sort -u)
	for path in $(CPU_PATHS); do
		echo "on path $$path"
		MILLRACE_TEST_CPU_PATH=$$path $(GO) test $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) $$packages
	done

# $(call sanitized,SANITIZER,TESTS): the native tests, built with a sanitizer of the compiler.
define sanitized
	echo 'native tests under the $(1) sanitizer'
	MILLRACE_TEST_SANITIZER=$(1) $(GO) test -count=1 $(TEST_FLAGS) -timeout 30m -run '$(2)' ./cuda/cpu
endef

.PHONY: test-sanitized
test-sanitized: ## Run the CPU engine's native tests and its C program under ASan with leak check, UBSan and TSan
	@# Side by side: most of these programs have one thread.
	{ $(call sanitized,address$(comma)undefined,^(TestAC99Program|TestUnitPrograms)) ; } & first=$$!
	# What has threads; which instructions they run makes no difference to races.
	{ $(call sanitized,thread,^(TestAC99Program|TestUnitPrograms)/^(portable|threads|b2_runner)$$) ; } & second=$$!
	status=0
	wait $$first || status=1
	wait $$second || status=1
	exit $$status

# Takes many minutes: meant for once a week and before a release.
.PHONY: test-valgrind
test-valgrind: ## Run the CPU engine's native tests and its C program under Valgrind's memcheck; needs valgrind
	@command -v valgrind >/dev/null || { echo 'valgrind is missing: install it, on Debian and Ubuntu the package valgrind' >&2; exit 1; }
	MILLRACE_TEST_VALGRIND=1 $(GO) test -count=1 $(TEST_FLAGS) -timeout 3h -run '^(TestAC99Program|TestUnitPrograms)' \
		-skip /fuzz_corpus ./cuda/cpu

.PHONY: tidy-check
tidy-check: ## Fail if go mod tidy would change a go.mod or go.sum
	@$(GO) mod tidy -diff
	(cd tools && GOFLAGS= $(GO) mod tidy -diff)
	(cd tools/release && GOFLAGS= $(GO) mod tidy -diff)
	(cd tools/helm && GOFLAGS= $(GO) mod tidy -diff)
	(cd services/gateway/sdktest && GOFLAGS= $(GO) mod tidy -diff)
	(cd gpuworker/guide/testdata/suite && GOFLAGS= $(GO) mod tidy -diff)

.PHONY: fmt-check
fmt-check: ## Fail if gofmt would change a file
	@files=$$(gofmt -l $$(git ls-files '*.go'))
	[[ -z $$files ]] || { printf 'not formatted, run gofmt -w:\n%s\n' "$$files" >&2; exit 1; }

# golangci-lint's govet has every check of go vet, and all are enabled.
.PHONY: lint
lint: fmt-check $(GOLANGCI_LINT) ## Run gofmt and golangci-lint, go vet's checks among its own
	@$(TOOLS)/golangci-lint run

.PHONY: chart-check
chart-check: $(GOLANGCI_LINT) ## Render the Helm chart for every example, decode it strictly, and start the programs as its pods do
	@cd tools/helm
	$(CURDIR)/$(TOOLS)/golangci-lint run
	$(GO) test $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) ./...

.PHONY: test-xds
test-xds: ## Run the tests of clients with a control plane, and of the configurations of Envoy
	@$(GO) test -tags xds $(TEST_FLAGS) -timeout $(TEST_TIMEOUT) -run 'ControlPlane|Envoy' ./services/internal/e2e

# Only a call of vulnerable code fails: imported code that is not reached is reported and passes.
.PHONY: vuln
vuln: ## Fail if a program, a test or the chart's check calls what VULNDB knows as vulnerable; where that is out of reach, say so
	@host='$(VULNDB)' && host=$${host#https://} && host=$${host%%/*}
	if [[ '$(VULNDB)' == https://* ]] && ! timeout 10 bash -c '</dev/tcp/'"$$host"'/443' 2>/dev/null; then
		echo 'no vulnerability was looked up: $(VULNDB) is out of reach'
		exit 0
	fi
	# Only now, because the check is compiled for a minute.
	$(MAKE) --no-print-directory $(GOVULNCHECK)
	status=0
	$(TOOLS)/govulncheck -db '$(VULNDB)' -tags xds -test ./... || status=1
	$(TOOLS)/govulncheck -C tools/helm -db '$(VULNDB)' -test ./... || status=1
	exit $$status

# libFuzzer's runtime, which Debian has without clang in libclang-rt-14-dev; empty: there is none, or FUZZ wants none.
LIBFUZZER := $(shell [[ engine_abi =~ $(FUZZ) ]] && \
	ls "$$(clang -print-runtime-dir 2>/dev/null)"/libclang_rt.fuzzer{-$$(uname -m),}.a \
		/usr/lib/llvm-*/lib/clang/*/lib/linux/libclang_rt.fuzzer-$$(uname -m).a 2>/dev/null | head -1)
# The engine as the fuzzer sees it: checked by ASan and UBSan, and watched at every edge. g++ compiles it, since the engine is
# written with g++'s vectors and pragmas, and libFuzzer is linked to that.
FUZZ_FLAGS := -std=c++17 -O0 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fno-sanitize-recover=all \
	-Icuda/cpu -Icuda/include
FUZZ_OBJECTS := $(patsubst cuda/cpu/%.cpp,build/fuzz/%.o,$(wildcard cuda/cpu/*.cpp))

build/fuzz/%.o: cuda/cpu/%.cpp $(wildcard cuda/cpu/*.h cuda/cpu/*.inl cuda/include/millrace/*.h)
	@mkdir -p $(@D)
	g++ $(FUZZ_FLAGS) -w -fsanitize-coverage=trace-pc,trace-cmp -c -o $@ $<

build/fuzz/engine_abi: cuda/cpu/fuzz/engine_abi_fuzz.cpp $(wildcard cuda/cpu/fuzz/*.h) $(FUZZ_OBJECTS)
	@g++ $(FUZZ_FLAGS) -Wl,--wrap=__sanitizer_cov_trace_pc -o $@ $< $(FUZZ_OBJECTS) $(LIBFUZZER) -lpthread

.PHONY: fuzz
fuzz: $(if $(LIBFUZZER),build/fuzz/engine_abi) ## Run each fuzz target for FUZZTIME (5m), the engine's C ABI too where libFuzzer is; FUZZ=REGEX chooses
	@targets=$$(grep -r --include='*_test.go' '^func Fuzz' gpuworker internal services |
		sed -n 's|^\(.*\)/[^/]*:func \(Fuzz[A-Za-z0-9_]*\)(.*|\1 \2|p' | awk '$$2 ~ /$(FUZZ)/')
	if [[ -n $$targets ]]; then
		# Edges are watched in this module's packages alone, so that what they import is compiled as for everything else.
		$(GO) test -c -gcflags='github.com/millrace/millrace/...=-d=libfuzzer' -o build/fuzz/ \
			$$(cut -d ' ' -f 1 <<<"$$targets" | sort -u | sed 's|^|./|')
	fi
	if [[ -n '$(LIBFUZZER)' ]]; then
		targets+=$$'\n''cuda/cpu engine_abi'
	elif [[ engine_abi =~ $(FUZZ) ]]; then
		echo 'engine_abi is left out: libFuzzer is not here; Debian has it in libclang-rt-14-dev' >&2
	fi
	seconds=$$(sed 's/h/*3600+/; s/m/*60+/; s/s/+/' <<<'$(FUZZTIME)')
	export seconds=$$(($${seconds}0))
	# fuzz FOLDER TARGET: on one processor; what it prints stays in one piece.
	fuzz() {
		corpus=$(CURDIR)/build/fuzz/corpus/$$1
		mkdir -p "$$corpus" && cd "$$1" || return
		if [[ $$2 == engine_abi ]]; then
			set -- "$$1" "$$2" -max_total_time="$$seconds" -max_len=1024 -timeout=60 -artifact_prefix=fuzz/testdata/ "$$corpus" fuzz/testdata
			program=engine_abi
		else
			program=$$(basename "$$1").test
			set -- "$$1" "$$2" -test.run '^$$' -test.fuzz "^$$2\$$" -test.fuzztime "$${seconds}s" -test.parallel 1 -test.fuzzcachedir "$$corpus"
		fi
		status=0
		out=$$($(CURDIR)/build/fuzz/"$$program" "$${@:3}" 2>&1) || status=1
		# Where the time ends amid an input, Go may report that as a failure (golang/go#75804); what fails writes its input.
		if [[ $$out == *'context deadline exceeded'* && $$out != *'Failing input written'* && $$out != *panic:* ]]; then
			out+=$$'\n''the time ended, and no input failed'
			status=0
		fi
		printf '%s %s\n%s\n' "$$1" "$$2" "$$out"
		return $$status
	}
	export -f fuzz
	xargs -r -P "$$(nproc)" -L 1 bash -c 'fuzz "$$@"' fuzz <<<"$$targets"

.PHONY: bench
bench: build ## Measure the engine against this machine's roofs; BENCH="load ..." chooses another benchmark
	@$(BIN)/millrace-bench $(BENCH)

.PHONY: chaos
chaos: build ## Kill, freeze and partition workers under 200 streams and compare every bit; CHAOS="--streams 60 ..." gives flags
	@$(BIN)/millrace-bench chaos $(CHAOS)

.PHONY: soak
soak: ## Compare 500 random model descriptions and states of 100 000 tokens with the reference, then random requests through a fleet with one worker's for SOAK (20m)
	@MILLRACE_DESCRIPTIONS=500 MILLRACE_STATE_TOKENS=100000 $(GO) test -count=1 -timeout 0 \
		-run '^TestTheCPUEngineKeeps/./^(descriptions|far_states)$$' ./gpuworker/engine/native
	@MILLRACE_SOAK=$(SOAK) $(GO) test -count=1 -timeout 0 -v -run '^TestSoak' ./services/internal/e2e

## Run

.PHONY: run
run: export PROMPT := $(PROMPT)
run: build ## Build, serve the shipped model on loopback, stream a story for PROMPT="...", stop
	@deploy/local.sh run

.PHONY: up
up: build ## The same, kept running in the background; prints what to type next
	@deploy/local.sh up

.PHONY: down
down: ## Stop what up started
	@deploy/local.sh down

## Containers

# The plugin where it is installed, the older program elsewhere.
comma := ,
COMPOSE := $(shell docker compose version >/dev/null 2>&1 && echo docker compose || echo docker-compose)
export VERSION

# Where the engine of the GPU workers' image comes from: see deploy/Dockerfile. Only 1 needs an image with a CUDA compiler.
CUDA ?= 1
export CUDA
ifneq ($(CUDA),1)
export CUDA_IMAGE ?= $(or $(CUDA_BASE_IMAGE),ubuntu:24.04)
endif

.PHONY: image
image: ## Build the container image; PROFILE=gpu builds the one of GPU workers too, CUDA=prebuilt from build/cuda
	$(COMPOSE) $(if $(PROFILE),--profile $(PROFILE),) build

.PHONY: local-bases
local-bases: ## Make the image's base images from Debian packages, where no container registry is reached
	deploy/local-bases.sh

.PHONY: compose-up
compose-up: export CPU_WORKERS := $(or $(CPU_WORKERS),$(if $(filter sim,$(PROFILE)),0,2))
compose-up: ## Start two schedulers and CPU_WORKERS (2) CPU workers in containers; PROFILE=gpu adds a worker per GPU, sim simulated ones, monitoring Prometheus, tracing Jaeger
	@gpus='$(GPUS)'
	if [[ '$(PROFILE)' == gpu ]]; then
		gpus=$${gpus:-$$(nvidia-smi -L 2>/dev/null | wc -l || true)}
		((gpus > 0)) || { echo 'nvidia-smi lists no GPU here: say how many there are, GPUS=2' >&2; exit 1; }
		((gpus <= 8)) || { echo "docker-compose.yml has services for 8 of the $$gpus GPUs" >&2; gpus=8; }
		for n in {0..7}; do export "GPU_$$n=$$((n < gpus))"; done
	fi
	if [[ '$(PROFILE)' == tracing ]]; then
		export OTEL_EXPORTER_OTLP_ENDPOINT="$${OTEL_EXPORTER_OTLP_ENDPOINT:-http://jaeger:4318}"
	fi
	$(COMPOSE) $(if $(PROFILE),--profile $(PROFILE),) up -d --build

.PHONY: compose-console
compose-console: build ## Run a scheduler on this host over the workers in containers, with its console at http://127.0.0.1:8070
	@ids=$$($(COMPOSE) --profile gpu --profile sim ps -q $$($(COMPOSE) --profile gpu --profile sim config --services | grep -E '^(worker|sim|gpu-)'))
	[[ -n $$ids ]] || { echo 'no worker runs in a container: make compose-up' >&2; exit 1; }
	workers=$$(docker inspect -f '{{range .NetworkSettings.Networks}}{{.IPAddress}}:7071{{end}}' $$ids | paste -sd ,)
	$(BIN)/millrace-scheduler --listen 127.0.0.1:7270 --workers "$$workers" --insecure --console-listen 127.0.0.1:8070

.PHONY: compose-check
compose-check: build ## Prove the containers on this machine: they serve, come back under their names, and need a GPU or say so
	@deploy/compose-check.sh

.PHONY: rig-test
rig-test: build ## Inject faults into containers under load and compare every bit; RIG=kill,freeze chooses sections, PROFILE=sim simulates workers
	@PROFILE='$(PROFILE)' deploy/rig-test.sh '$(RIG)'

.PHONY: compose-down
compose-down: ## Stop the containers
	$(COMPOSE) --profile gpu --profile sim --profile monitoring --profile tracing down --remove-orphans

## Release

.PHONY: release
release: $(NFPM) $(SBOM) $(WHEEL) ## Make archives, packages, a wheel, bill of materials and checksums in build/release; needs g++-aarch64-linux-gnu, protobuf-compiler-grpc
	@deploy/release.sh

.PHONY: release-check
release-check: $(NFPM) $(SBOM) $(WHEEL) ## Make a release twice, in two folders, and fail unless the bytes are the same; check and install the packages
	@deploy/release-check.sh

## Contract

.PHONY: proto
proto: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## Wipe proto/gen and generate it from proto/
	@PATH="$(CURDIR)/$(TOOLS):$$PATH" buf generate

.PHONY: proto-breaking
proto-breaking: $(BUF) ## Fail if the contract breaks clients of the newest release that is tagged
	@last=$$(git describe --tags --abbrev=0 --match 'v[0-9]*' 2>/dev/null) ||
		{ echo 'no release is tagged, so there is no contract to compare with'; exit 0; }
	echo "comparing the contract with that of $$last"
	$(TOOLS)/buf breaking --against ".git#tag=$$last"

.PHONY: proto-check
proto-check: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) ## Fail if proto/gen is not what proto/ generates
	@scratch=$$(mktemp -d)
	trap 'rm -rf "$$scratch"' EXIT
	PATH="$(CURDIR)/$(TOOLS):$$PATH" buf generate --output "$$scratch"
	diff -r "$$scratch/proto/gen" proto/gen || { echo 'proto/gen is not current: run make proto' >&2; exit 1; }

.PHONY: proto-lint
proto-lint: $(BUF) ## Lint the contract: formatting, buf STANDARD and COMMENTS
	@$(TOOLS)/buf format --diff --exit-code
	$(TOOLS)/buf lint

## Tools

.PHONY: tools
tools: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(GOLANGCI_LINT) $(GOVULNCHECK) $(GRPCURL) $(GHZ) ## Install every pinned tool into build/tools

.PHONY: grpcurl
grpcurl: $(GRPCURL) ## Install grpcurl alone into build/tools

.PHONY: check-tools
check-tools: $(BUF) $(PROTOC_GEN_GO) $(PROTOC_GEN_GO_GRPC) $(GOLANGCI_LINT) ## Install those of them that check the contract and the code

# $(call install,STAMP,PACKAGE): the tools/ module chooses the version. They are not debugged.
define install
	@mkdir -p $(TOOLS)
	echo 'installing $(patsubst .%,%,$(notdir $(1)))'
	(cd tools && GOFLAGS= GOBIN='$(CURDIR)/$(TOOLS)' $(GO) install -ldflags='-s -w' $(2))
	touch $(1)
endef

$(BUF):
	$(call install,$@,github.com/bufbuild/buf/cmd/buf)
$(PROTOC_GEN_GO):
	$(call install,$@,google.golang.org/protobuf/cmd/protoc-gen-go)
$(PROTOC_GEN_GO_GRPC):
	$(call install,$@,google.golang.org/grpc/cmd/protoc-gen-go-grpc)
$(GOLANGCI_LINT):
	$(call install,$@,github.com/golangci/golangci-lint/v2/cmd/golangci-lint)
$(GOVULNCHECK):
	$(call install,$@,golang.org/x/vuln/cmd/govulncheck)
$(GRPCURL):
	$(call install,$@,github.com/fullstorydev/grpcurl/cmd/grpcurl)
$(GHZ):
	$(call install,$@,github.com/bojand/ghz/cmd/ghz)
$(NFPM):
	@mkdir -p $(TOOLS)
	echo 'installing $(patsubst .%,%,$(notdir $@))'
	(cd tools/release && GOFLAGS= GOBIN='$(CURDIR)/$(TOOLS)' $(GO) install github.com/goreleaser/nfpm/v2/cmd/nfpm)
	touch $@
$(SBOM): tools/release/sbom/main.go tools/release/go.mod
	@(cd tools/release && GOFLAGS= $(GO) build -o '$(CURDIR)/$@' ./sbom)
$(WHEEL): $(wildcard tools/release/wheel/*.go) tools/release/go.mod
	@(cd tools/release && GOFLAGS= $(GO) build -o '$(CURDIR)/$@' ./wheel)
