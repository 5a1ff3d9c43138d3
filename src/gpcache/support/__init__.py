"""Helpers for all packages: files, devices, progress, optional packages, checks of input."""
