"""The server: a workspace of photos behind a page and an HTTP API, on one machine."""
