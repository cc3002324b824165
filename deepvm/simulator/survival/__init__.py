"""Whether spot VMs can be had and live for a time: learnt from traces, and judged on traces that were held out."""
