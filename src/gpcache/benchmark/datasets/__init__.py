"""Data sets to measure on: the paper's thirteen, class folders, and features made elsewhere."""

from gpcache.benchmark.datasets.catalogue import Counts, DatasetEntry, catalogue
from gpcache.benchmark.datasets.dataset import Dataset, Split, held_out
from gpcache.benchmark.datasets.features import FeatureSet, open_features
from gpcache.benchmark.datasets.loading import (
    DatasetStatus,
    check_datasets,
    load_dataset,
    load_folder,
)

__all__ = [
    "Counts",
    "Dataset",
    "DatasetEntry",
    "DatasetStatus",
    "FeatureSet",
    "Split",
    "catalogue",
    "check_datasets",
    "held_out",
    "load_dataset",
    "load_folder",
    "open_features",
]
