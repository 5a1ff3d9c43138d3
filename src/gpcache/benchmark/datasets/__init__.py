"""Data sets to measure on: the thirteen of the paper, class folders, and stored features."""
