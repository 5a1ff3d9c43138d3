"""Image–image similarity learned from unlabelled images."""
