"""Image classifiers and what belongs to one: answers, figures, audit, files, report."""
