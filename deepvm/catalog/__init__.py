"""Where instance types and prices come from: embedded catalogs and the user's own files."""
