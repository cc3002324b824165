"""A training without torch, which starts quickly: it resumes right, or makes the one mistake that
it is told to.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from deepvm.lab import SampleLog

STEPS, EVERY, EPOCH = 60, 8, 20


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("DEEPVM_AUDIT_DIR", ".")))
    parser.add_argument("--mistake", default="")
    parser.add_argument("--resume", action="store_true")
    options = parser.parse_args()
    mistake, file = options.mistake, options.out / "checkpoint.json"
    log = SampleLog()
    weights, momentum, step = np.zeros(4), np.zeros(4), 0
    noise = np.random.default_rng(None if mistake == "unseeded" else 0).random(STEPS)
    resumed = file.exists() and mistake != "anew"
    if resumed:
        if mistake == "crash":
            sys.exit("KeyError: 'optimizer'")
        if mistake == "hang":
            time.sleep(600)
        if mistake == "untold" and not options.resume:
            sys.exit("told nothing")
        saved = json.loads(file.read_text())
        weights, momentum, step = (
            np.array(saved["weights"]),
            np.array(saved["momentum"]),
            saved["step"],
        )
        if mistake == "momentum":
            momentum[:] = 0
    while step < STEPS:
        ids = [(step * 3 + place) % 60 for place in range(3)]
        momentum = 0.9 * momentum + noise[step] * np.array([1.0, *ids])
        weights = weights - 0.01 * momentum
        loss = float(noise[step])
        if mistake == "loss" and resumed:
            loss += 1
        if mistake == "samples" and resumed and step == STEPS - 1:
            ids[0] = 99
        time.sleep(0.004)
        if mistake != "silent":
            log.step(step, ids, loss, epoch=step // EPOCH)
        step += 1
        if step % EVERY == 0:
            state = {"step": step, "weights": weights.tolist(), "momentum": momentum.tolist()}
            file.with_suffix(".tmp").write_text(json.dumps(state))
            os.replace(file.with_suffix(".tmp"), file)
    if mistake == "fails":
        sys.exit("ValueError: it has never worked")
    save_file({"weights": weights}, options.out / "final.safetensors")


if __name__ == "__main__":
    main()
