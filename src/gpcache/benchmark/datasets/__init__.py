"""Data sets to measure on: the paper's thirteen, class folders, and features made elsewhere."""
