"""Pages of the reference that are made from the program: the command line and the HTTP API."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command


def write_all(folder: Path) -> None:
    """Write every generated page into `folder`; a page that did not change is left alone."""
    folder.mkdir(exist_ok=True)
    pages = {"command-line.md": command_line(), "http-api.md": http_api()}
    for name, text in pages.items():
        path = folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


def command_line() -> str:
    """The commands with their help, arguments and options, as Markdown."""
    from gpcache.cli.app import app

    return "\n".join(_commands(get_command(app), "gpcache"))


def _commands(command: Any, name: str) -> Iterator[str]:
    for key, inner in getattr(command, "commands", {}).items():
        yield from _commands(inner, f"{name} {key}")
    if not hasattr(command, "commands"):
        text = re.sub(r"\n{3,}", "\n\n", (command.help or "").replace("\f", "").strip())
        rows = [_row(one) for one in command.params if one.name not in ("help", "_verbose")]
        head = ["| option | default | meaning |", "|---|---|---|"]
        yield "\n".join([f"## {name}", "", text, "", *head, *rows, ""])


def _row(parameter: Any) -> str:
    is_option = parameter.param_type_name == "option"
    names = [*parameter.opts, *parameter.secondary_opts] if is_option else [parameter.metavar]
    shown = ", ".join(f"`{name}`" for name in names if name) or f"`{parameter.name.upper()}`"
    default = parameter.default if is_option else None
    if isinstance(getattr(parameter, "show_default", None), str):
        default = parameter.show_default
    empty = default is None or default is False or default == []
    shown_default = "" if empty else f"`{default}`"
    if is_option and parameter.required:
        shown_default = "required"
    meaning = (getattr(parameter, "help", "") or "").replace("|", "\\|")
    return f"| {shown} | {shown_default} | {meaning} |"


def http_api() -> str:
    """Every request of the server with its parameters, body and answer, from OpenAPI."""
    from fastapi import FastAPI

    from gpcache.web.routes import batch, export, inference_v2, predict, test_set, workspace

    app = FastAPI(title="gpcache")  # no server is started, and no encoder is loaded
    for part in (workspace, predict, batch, export, test_set, inference_v2):
        app.include_router(part.routes)
    document = app.openapi()
    return "\n".join(
        _operation(f"{method.upper()} {path}", operation, document)
        for path, operations in document["paths"].items()
        for method, operation in operations.items()
    )


def _operation(title: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    described = operation.get("description") or operation.get("summary", "")
    lines = [f"### `{title}`", "", described, ""]
    parameters = operation.get("parameters", [])
    found = [(one["name"], one["in"], one.get("schema", {})) for one in parameters]
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        found += [(name, kind, one) for name, one in _fields(content["schema"], document).items()]
    rows = [f"| `{name}` | {kind} | {_type(schema)} |" for name, kind, schema in found]
    if rows:
        lines += ["| field | in | type |", "|---|---|---|", *rows, ""]
    answer = operation["responses"].get("200", {}).get("content", {}).get("application/json", {})
    if fields := _fields(answer.get("schema", {}), document):
        lines += ["Answer: " + ", ".join(f"`{name}`" for name in fields) + ".", ""]
    return "\n".join(lines)


def _fields(schema: dict[str, Any], document: dict[str, Any]) -> dict[str, Any]:
    if "$ref" in schema:
        schema = document["components"]["schemas"][_name(schema)]
    return schema.get("properties", {})


def _name(schema: dict[str, Any]) -> str:
    return schema["$ref"].rsplit("/", 1)[1]


def _type(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_type(one) for one in schema["anyOf"])
    if "$ref" in schema:
        return _name(schema)
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(one)}`" for one in schema["enum"])
    kind = str(schema.get("type", "any"))
    return f"array of {_type(schema['items'])}" if "items" in schema else kind
