# SPDX-License-Identifier: Apache-2.0
# Python of the protocols: written by `make proto`, committed, and proved fresh by `make proto-check`.
PY ?= build/venv/bin/python

.PHONY: proto proto-check
proto: $(VENV)  ## regenerate the Python of proto/
	$(PY) proto/generate.py

proto-check: $(VENV)  ## fail when generated Python is not what proto/ says
	$(PY) proto/generate.py --check
