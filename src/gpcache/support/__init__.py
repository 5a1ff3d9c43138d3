"""What every package may use: files, devices, progress, optional packages, checks of input."""
