"""The exact search: the integer program and the enumeration that checks it."""
