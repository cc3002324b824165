"""Measure the speed-up of data-parallel training on several VMs (DeepVM III-C1)."""
