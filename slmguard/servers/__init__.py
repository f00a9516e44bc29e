"""One file per inference server, found by its name."""
