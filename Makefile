# make test                 ruff, mypy and the whole test suite: make lint, then make pytest
# make chat [PROMPT="..."]  talk to a small language model; with PROMPT, one answer
# make serve [OPTIONS="..."]  a server of language models, with a page: http://127.0.0.1:8000
# make picture              a sheet of clothing that a small model draws, in sheet.png
# make fuzz [MINUTES=5]     random networks beside PyTorch, for so many minutes of processor time
# make docs                 builds the pages of docs/ into build/site, with links checked
# PYTHON names the interpreter (3.11 or later) that .venv is made with, PROCESSES how many run tests (1.5 GB each).

PYTHON ?= python3
PROCESSES ?= 2
VENV := .venv
PIP := $(VENV)/bin/python -m pip --disable-pip-version-check

# Tests start Python a hundred times: without bytecode on disk each start compiles minigrad again, for two seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: test lint pytest fuzz chat serve picture docs clean

test: lint pytest

pytest: $(VENV)/.installed-test
	$(VENV)/bin/python -m pytest -n $(PROCESSES) --dist worksteal

lint: $(VENV)/.installed-test
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy

fuzz: $(VENV)/.installed-test
	cd test && ../$(VENV)/bin/python -m fuzz --minutes $(or $(MINUTES),5)

chat: $(VENV)/.installed-chat
	@$(VENV)/bin/python examples/llama/chat.py $(if $(PROMPT),--prompt "$$PROMPT")

serve: $(VENV)/.installed-serve
	@$(VENV)/bin/python examples/llama/serve.py $(OPTIONS)

picture: $(VENV)/.installed-picture
	@$(VENV)/bin/python examples/diffusion/sheet.py

docs: $(VENV)/.installed-docs
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict

# The prompt reaches the command through the environment, so that its quotes and dollars mean nothing to the shell.
export PROMPT

$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "minigrad needs Python 3.11 or later")'
	$(PYTHON) -m venv $(VENV)

# Each stamp depends on pyproject.toml: nothing is installed again until the dependencies change.
$(VENV)/.installed-chat: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable ".[chat]"
	@touch $@

$(VENV)/.installed-serve: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable ".[serve]"
	@touch $@ $(VENV)/.installed-chat

$(VENV)/.installed-picture: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable ".[examples]"
	@touch $@

$(VENV)/.installed-test: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable ".[test]"
	@touch $@ $(VENV)/.installed-chat $(VENV)/.installed-serve $(VENV)/.installed-picture

$(VENV)/.installed-docs: pyproject.toml | $(VENV)/bin/python
	$(PIP) install --quiet --editable ".[docs]"
	@touch $@ $(VENV)/.installed

clean:
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache
