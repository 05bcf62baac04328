# The image of `gigaslice node`: podman build --tag gigaslice:0.1.0 . (or docker; `make image` picks one).
# Nothing of NVIDIA is in it: the driver's NVML comes from the node, by the container runtime.
ARG PYTHON=3.12-slim-bookworm

# --- build: the wheel's own rules compile the library and the bindings; cuda.h and nvml.h come from the packages that
# --- build-system.requires in pyproject.toml pins, and stay here.
FROM docker.io/library/python:${PYTHON} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
RUN python -m venv --without-pip /opt/gigaslice
COPY pyproject.toml setup.py MANIFEST.in Makefile README.md LICENSE ./
COPY native native
COPY vcuda vcuda
COPY agent agent
RUN pip --python /opt/gigaslice/bin/python install --no-cache-dir --no-compile .
RUN /opt/gigaslice/bin/python -m compileall -q /opt/gigaslice/lib \
 && /opt/gigaslice/bin/gigaslice version

# --- run: the same Python, the installed packages, no compiler. Nothing is fetched when a container starts.
FROM docker.io/library/python:${PYTHON}
LABEL org.opencontainers.image.title="gigaslice" \
      org.opencontainers.image.description="Shares NVIDIA GPUs between Kubernetes containers by the gigabyte" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gigaslice /opt/gigaslice
ENV PATH=/opt/gigaslice/bin:$PATH \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Root: the kubelet's sockets and directories are root's. What else it may do is up to daemonset.yaml.
ENTRYPOINT ["gigaslice"]
CMD ["node"]
