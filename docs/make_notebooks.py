"""Writes docs/notebooks/*.ipynb, with their output, from the scripts in docs/examples.

Run it as `python docs/make_notebooks.py` after a change of a script.
"""

from pathlib import Path

import nbformat
from nbclient import NotebookClient
from sphinx_gallery.py_source_parser import split_code_and_text_blocks

HERE = Path(__file__).parent
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}


def notebook_of(script: Path) -> nbformat.NotebookNode:
    """The notebook of a script, without output."""
    _, blocks = split_code_and_text_blocks(str(script))
    cells = []
    for kind, content, _ in blocks:
        make = nbformat.v4.new_code_cell if kind == "code" else nbformat.v4.new_markdown_cell
        cells.append(make(content.strip()))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    return nbformat.v4.new_notebook(cells=cells, metadata=KERNEL)


def main() -> None:
    """Run every script as a notebook and write it."""
    for script in sorted((HERE / "examples").glob("*.py")):
        notebook = notebook_of(script)
        NotebookClient(notebook, timeout=600).execute()
        for cell in notebook.cells:
            cell.metadata.clear()
            # Warnings on stderr name files of this machine.
            shown = [one for one in cell.get("outputs", []) if one.get("name") != "stderr"]
            cell |= {"outputs": shown} if cell.cell_type == "code" else {}
        nbformat.write(notebook, HERE / "notebooks" / f"{script.stem}.ipynb")


if __name__ == "__main__":
    main()
