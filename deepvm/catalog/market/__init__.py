"""Today's market of a region: signals joined into a catalog, without implausible prices."""
