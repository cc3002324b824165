"""AWS as a source of types, prices and quotas: requests, credentials, replies and errors."""
