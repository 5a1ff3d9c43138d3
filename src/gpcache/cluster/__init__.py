"""Ray: extraction, and caches of millions of keys."""
