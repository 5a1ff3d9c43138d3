"""Image classifiers: answers, figures, audit, files, report."""
