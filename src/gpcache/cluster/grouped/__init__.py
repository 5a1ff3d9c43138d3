"""Caches of very many keys: groups of classes as tasks, in this process or on Ray."""

from gpcache.cluster.grouped.estimator import GroupedCache, TopClasses

__all__ = ["GroupedCache", "TopClasses"]
