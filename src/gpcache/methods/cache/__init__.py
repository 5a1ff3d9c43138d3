"""The shared parts of cache methods: shots, choosing, building, training, updating."""
