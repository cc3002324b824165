"""Files of checkpoints: names, durable writes, manifests, stripes, locks, retention, export."""
