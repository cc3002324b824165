"""Files of versions: names, durable writes, commit records, stripes, locks, retention, export."""
