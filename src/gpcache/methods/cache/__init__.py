"""What cache methods share: shots, choosing, building, training, updating."""
