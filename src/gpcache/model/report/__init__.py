"""One HTML file that shows how good a model is, where it errs, and why; and its plots as files."""

from gpcache.model.report.content import Case, Embedding, Evidence, Report
from gpcache.model.report.page import render, write_report
from gpcache.model.report.plots import save_plots

__all__ = ["Case", "Embedding", "Evidence", "Report", "render", "save_plots", "write_report"]
