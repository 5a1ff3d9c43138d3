"""Ray: extraction on many machines."""
