"""Files that users write and read: catalogs, quotas and plans, as JSON and CSV, and what is wrong with them."""
