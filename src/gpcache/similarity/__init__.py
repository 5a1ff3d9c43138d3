"""Image–image similarity learned from unlabelled images."""

from gpcache.similarity.contrast import contrastive_loss
from gpcache.similarity.options import ProjectionOptions
from gpcache.similarity.projection import ProjectionFacts, SimilarityProjection
from gpcache.similarity.train import learn_projection
from gpcache.similarity.whitening import whitening_projection

__all__ = [
    "ProjectionFacts",
    "ProjectionOptions",
    "SimilarityProjection",
    "contrastive_loss",
    "learn_projection",
    "whitening_projection",
]
