"""Features on disk: the store, its extraction, and nearest neighbours."""

from gpcache.features.extract import Extraction, extract
from gpcache.features.neighbors import nearest
from gpcache.features.store import FeatureStore, Item, Rows

__all__ = ["Extraction", "FeatureStore", "Item", "Rows", "extract", "nearest"]
