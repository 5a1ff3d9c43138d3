"""Features on disk: the store, its extraction, text vectors, and nearest neighbours."""
