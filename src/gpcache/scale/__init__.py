"""Caches of very many keys: groups of classes as tasks, in this process or on Ray."""

from gpcache.scale.estimator import GroupedCache, TopClasses

__all__ = ["GroupedCache", "TopClasses"]
