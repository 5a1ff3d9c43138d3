"""Measures methods on data sets: from a spec to rows, tables and figures.

In the order in which a run goes:

1. `spec.read_spec` reads a TOML file (`options` checks the options of methods).
2. `run.run` opens each data set as a `task.Task` (`datasets/`), lists the cells without a row, and
   appends the rows of each cell to a file (`rows`).
3. `workers.compute` computes cells, here or in processes; `cells.Cell` fits one method on one draw
   under one protocol (`protocols`) and scores it.
4. `output` groups rows into comparisons (`comparison`, `significance`), and writes `tables` beside
   the numbers in `published` (`table_formats`: Markdown, LaTeX, CSV) and `figures`.
"""
