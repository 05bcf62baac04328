# Python of the kubelet's protocols: written by `make proto`, committed, and proved fresh by `make proto-check`.
PY ?= build/venv/bin/python

.PHONY: proto proto-check
proto: $(VENV)  ## regenerate agent/kubelet/pb from proto/
	$(PY) proto/generate.py

proto-check: $(VENV)  ## fail when agent/kubelet/pb is not what proto/ says
	$(PY) proto/generate.py --check
