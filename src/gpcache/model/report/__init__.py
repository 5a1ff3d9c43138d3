"""The report of a model as one HTML file: accuracy, mistakes and reasons; and its plots."""

from gpcache.model.report.content import Case, Embedding, Evidence, Report
from gpcache.model.report.page import render, write_report
from gpcache.model.report.plots import save_plots

__all__ = ["Case", "Embedding", "Evidence", "Report", "render", "save_plots", "write_report"]
