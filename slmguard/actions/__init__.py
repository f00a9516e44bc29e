"""One file per rung of the ladder, found by its name."""
