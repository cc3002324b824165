"""Runs as jobs of ``deepvm run --cloud local``: the orchestrator's promise under the gates."""
