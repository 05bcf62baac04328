# SPDX-License-Identifier: Apache-2.0
# The image of `gigaslice node`: podman build --tag gigaslice:0.2.0-dev . (or docker; `make image` picks one).
# Nothing of NVIDIA is in it: the driver's NVML comes from the node, by the container runtime.
#
# A tag can be moved to another image. A digest is not written here, since it would be that of one day and without the
# fixes of all days after it; a build for production names the one that was looked at, of both architectures:
#   docker buildx imagetools inspect docker.io/library/python:3.12-slim-bookworm   (or skopeo inspect)
#   make image BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm@sha256:...
# Python packages are pinned by version and hash (deploy/image, `make lock`), for this version of Python.
ARG BASE_IMAGE=docker.io/library/python:3.12-slim-bookworm

# --- build: the wheel's own rules compile the library and the bindings; cuda.h and nvml.h come from the packages of
# --- build.txt, and stay here.
FROM ${BASE_IMAGE} AS build
RUN apt-get update \
 && apt-get install --yes --no-install-recommends gcc libc6-dev make \
 && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY deploy/image/build.txt deploy/image/runtime.txt /locks/
RUN pip install --no-cache-dir --require-hashes --only-binary :all: --requirement /locks/build.txt
RUN python -m venv --without-pip /opt/gigaslice \
 && pip --python /opt/gigaslice/bin/python install --no-cache-dir --no-compile --require-hashes --only-binary :all: \
      --requirement /locks/runtime.txt
COPY pyproject.toml setup.py MANIFEST.in Makefile README.md LICENSE ./
COPY native native
COPY vcuda vcuda
COPY gigaslice gigaslice
COPY agent agent
COPY gigaslice_cli gigaslice_cli
RUN pip wheel --no-cache-dir --no-index --no-deps --no-build-isolation --wheel-dir /wheel . \
 && pip --python /opt/gigaslice/bin/python install --no-cache-dir --no-compile --no-index --no-deps /wheel/*.whl
RUN /opt/gigaslice/bin/python -m compileall -q /opt/gigaslice/lib \
 && /opt/gigaslice/bin/gigaslice version

# --- run: the same Python, the installed packages, no compiler. Nothing is fetched when a container starts.
FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="gigaslice" \
      org.opencontainers.image.description="Shares NVIDIA GPUs between Kubernetes containers by the gigabyte" \
      org.opencontainers.image.version="0.2.0-dev" \
      org.opencontainers.image.licenses="Apache-2.0"
COPY --from=build /opt/gigaslice /opt/gigaslice
# gRPC's core writes lines of its own to stderr when a peer ends, such as "Got goaway", which are no JSON. Errors stay.
ENV PATH=/opt/gigaslice/bin:$PATH \
    GRPC_VERBOSITY=ERROR \
    PYTHONDONTWRITEBYTECODE=1 \
    PYTHONUNBUFFERED=1
# Root: the kubelet's sockets and directories are root's. What else it may do is up to daemonset.yaml.
ENTRYPOINT ["gigaslice"]
CMD ["node"]
