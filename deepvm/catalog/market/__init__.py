"""Today's market of a region: signals joined into a catalog, without prices that cannot be true."""
