"""Ray: extraction and fitting on many machines."""
