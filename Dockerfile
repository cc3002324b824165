# The command line of deepvm, for planning and for controlling jobs; no torch, no GPU.
#   docker build -t deepvm . && docker run --rm deepvm recommend --pw 3 --offline
# With torch for CPUs, to audit a training script of this folder:
#   docker build -t deepvm-audit --target audit .
#   docker run --rm -v "$PWD:/code:ro" deepvm-audit train.py --out {out}
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY deepvm deepvm
COPY data data
RUN python -m venv /opt/deepvm && /opt/deepvm/bin/pip install --no-cache-dir '.[run,postgres]'

FROM build AS build-audit
# First, from its own index: the torch of PyPI brings gigabytes of CUDA
RUN /opt/deepvm/bin/pip install --no-cache-dir torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu
RUN /opt/deepvm/bin/pip install --no-cache-dir '.[train]'

FROM python:3.12-slim AS base
# git: code from repositories; ssh: own hosts
RUN apt-get update && apt-get install -y --no-install-recommends git openssh-client && rm -rf /var/lib/apt/lists/*
RUN useradd --uid 10001 --create-home deepvm && install -d -o deepvm /data
# A number: Kubernetes can then check runAsNonRoot
USER 10001
# Mount a volume at /data to keep jobs, measurements and fetched prices
ENV PATH=/opt/deepvm/bin:$PATH DEEPVM_DATA_DIR=/data/deepvm DEEPVM_CACHE_DIR=/data/cache

FROM base AS audit
COPY --from=build-audit /opt/deepvm /opt/deepvm
WORKDIR /code
ENTRYPOINT ["deepvm", "audit"]
CMD ["--help"]

# Last: what is built without --target
FROM base
COPY --from=build /opt/deepvm /opt/deepvm
WORKDIR /data
ENTRYPOINT ["deepvm"]
CMD ["--help"]
