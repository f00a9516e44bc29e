"""How the guard shows itself in a terminal: shared by `status`, `top` and `demo`."""
