"""A script that saves by itself, here with pickle: four lines more, and it survives."""

import argparse
import os
import pickle
import time

import deepvm.training as dt

parser = argparse.ArgumentParser()
parser.add_argument("--steps", type=int, required=True)
steps = parser.parse_args().steps

latest = dt.latest()
step, state = pickle.loads(latest.read_bytes()) if latest else (0, 0.0)
while step < steps:
    with dt.step_context():
        state = 0.9 * state + step
        step += 1
        time.sleep(0.02)
    if dt.check_save():
        # Do not change it afterwards: it is uploaded in the background.
        path = f"state-{os.getpid()}-{step}.pickle"
        with open(path, "wb") as file:
            pickle.dump((step, state), file)
        dt.backup(path)
print(f"state {state:.6f} after {step} steps")
