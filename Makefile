# make demo | test | build | lint | format | wheel-check | sanitize | fuzz | fresh-check | cuda-check | clean
# Sets up .venv and build/ as needed; a second run finds both ready. CI=1 turns warnings into errors.
SHELL := /bin/bash
PYTHON ?= python3
PRESET ?= $(if $(CI),ci,default)
BUILD := build/$(PRESET)
READY := .venv/.ready
USER_PATH := $(PATH)
export PATH := $(CURDIR)/.venv/bin:$(PATH)
export PYTHON
.NOTPARALLEL:

.PHONY: demo test build module googletest lint format wheel-check sanitize fuzz fresh-check cuda-check clean

demo: module
	@python examples/demo.py

# Many steps of tiny models: threads that spin between them starve each other wherever the cores are shared.
demo test: export OMP_WAIT_POLICY := passive
test: build
	@rm -f $(BUILD)/ctest.xml $(BUILD)/pytest.xml; \
	ctest --preset $(PRESET) --output-junit $(CURDIR)/$(BUILD)/ctest.xml; ctest=$$?; \
	python -m pytest --junitxml=$(BUILD)/pytest.xml; pytest=$$?; \
	python tests/summary.py $(BUILD)/ctest.xml $(BUILD)/pytest.xml && exit $$((ctest | pytest))

# What is missing for the tests is said first, before pip and the compiler run for minutes.
build: googletest $(BUILD)/build.ninja
	@grep -q '^REPRISE_BUILD_TESTS:BOOL=ON' $(BUILD)/CMakeCache.txt || cmake --preset $(PRESET) -D REPRISE_BUILD_TESTS=ON
	@cmake --build --preset $(PRESET)

module: $(BUILD)/build.ninja
	@cmake --build --preset $(PRESET) --target _reprise_stub

googletest:
	@third_party/set_up.sh module venv tests

# The module alone wants no GoogleTest.
$(BUILD)/build.ninja: $(READY) CMakePresets.json
	cmake --preset $(PRESET) $(if $(wildcard $@),,-D REPRISE_BUILD_TESTS=OFF)

# Everything comes from pip, CMake and ninja too, but for what set_up.sh gets. pip is asked for itself first, as a machine without a
# network answers that in seconds. python/ is put on the path, so that the package is used where it stands.
$(READY): pyproject.toml third_party/set_up.sh
	@third_party/set_up.sh module venv
	@$(PYTHON) -m venv .venv 2>/dev/null || $(PYTHON) -m venv --without-pip .venv
	@python -m pip --version >/dev/null 2>&1 || python build/third_party/usr/share/python-wheels/pip-*.whl/pip install --quiet pip
	@python -m pip install --quiet --retries 0 --timeout 5 --upgrade 'pip>=25.1,<27' || \
	  { echo "reprise: pip reaches no package index: see to the network, or name one that it reaches in PIP_INDEX_URL" >&2; exit 1; }
	python -m pip install --group dev
	@python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' | \
	  { read -r site && echo '$(CURDIR)/python' >"$$site/reprise.pth"; }
	@printf '#!%s\nimport sys\n\nfrom reprise.cli import main\n\nsys.exit(main())\n' '$(CURDIR)/.venv/bin/python' >.venv/bin/reprise
	@chmod +x .venv/bin/reprise
	@touch $@

SOURCES = $$(git ls-files '*.h' '*.cpp')

lint: $(READY)
	ruff check .
	ruff format --check .
	clang-format --dry-run -Werror $(SOURCES)

format: $(READY)
	ruff format .
	ruff check --fix .
	clang-format -i $(SOURCES)

# A wheel as a user gets it: built by pip in isolation, installed beside torch in a venv of its own, used from outside.
wheel-check: export PATH := $(USER_PATH)
wheel-check: $(READY)
	rm -rf build/wheel
	$(PYTHON) -m venv build/wheel/venv
	build/wheel/venv/bin/python -m pip install --quiet torch==2.13.0
	build/wheel/venv/bin/python -m pip install --no-cache-dir .
	cd build/wheel && venv/bin/python $(CURDIR)/tests/consumer/wheel.py $(CURDIR)/tests/data/v41-tiny-engram

# The C++ tests under each sanitizer, without the Python module.
SANITIZERS := asan ubsan tsan
sanitize: googletest $(READY)
	@failed=; for preset in $(SANITIZERS); do \
	  cmake --preset $$preset && cmake --build --preset $$preset && ctest --preset $$preset || failed+=" $$preset"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# libFuzzer on what reads files of others; what it finds is put into build/fuzz/found.
FUZZ_SECONDS ?= 60
fuzz: $(READY)
	@third_party/set_up.sh fuzz tests
	cmake --preset fuzz
	cmake --build --preset fuzz
	@failed=; for target in safetensors_header config_json index_json; do \
	  mkdir -p build/fuzz/corpus/$$target build/fuzz/found; \
	  build/fuzz/tests/fuzz/fuzz_$$target -max_total_time=$(FUZZ_SECONDS) -timeout=10 -rss_limit_mb=4096 -print_final_stats=1 \
	    -artifact_prefix=build/fuzz/found/$$target- build/fuzz/corpus/$$target tests/fuzz/corpus/$$target || failed+=" $$target"; \
	done; [ -z "$$failed" ] || { echo "failed:$$failed" >&2; exit 1; }

# README's two commands in minimal Debian roots; as root.
fresh-check: export PATH := $(USER_PATH)
fresh-check:
	.ci/fresh-check

# Compiles and links what runs on a GPU against a CUDA build of torch (some GB), and runs its tests; those that want a GPU are
# skipped where there is none. Wants nvcc, for its headers.
cuda-check: $(READY)
	[ -d build/cuda-venv ] || $(PYTHON) -m venv build/cuda-venv
	build/cuda-venv/bin/python -m pip install --quiet torch==2.14.1
	cmake --preset cuda
	cmake --build --preset cuda --target graph_runner_test cuda_graph_runner_test
	ctest --preset cuda -R graph_runner_test

clean:
	rm -rf build .venv python/reprise/_reprise* python/reprise/bin
