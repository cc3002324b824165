"""From a request to ranked clusters: candidates, constraints, exact solutions, reasons."""
