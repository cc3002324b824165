# The command line of deepvm, for planning and for controlling jobs; no torch, no GPU.
#   docker build -t deepvm . && docker run --rm deepvm recommend --pw 3 --offline
FROM python:3.12-slim AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY deepvm deepvm
COPY data data
RUN python -m venv /opt/deepvm && /opt/deepvm/bin/pip install --no-cache-dir '.[run,postgres]'

FROM python:3.12-slim
# git: code from repositories; ssh: own hosts
RUN apt-get update && apt-get install -y --no-install-recommends git openssh-client && rm -rf /var/lib/apt/lists/*
COPY --from=build /opt/deepvm /opt/deepvm
RUN useradd --uid 10001 --create-home deepvm && install -d -o deepvm /data
# A number: Kubernetes can then check runAsNonRoot
USER 10001
WORKDIR /data
# Mount a volume here to keep jobs, measurements and fetched prices
ENV PATH=/opt/deepvm/bin:$PATH DEEPVM_DATA_DIR=/data/deepvm DEEPVM_CACHE_DIR=/data/cache
ENTRYPOINT ["deepvm"]
CMD ["--help"]
