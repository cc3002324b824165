"""Speed-up of data-parallel training over n VMs (DeepVM III-C1)."""
