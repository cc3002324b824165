"""The training job: state, hooks, ranks, requests, handles, layerwise updates, missing steps."""
