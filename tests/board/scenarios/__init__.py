"""One file per scenario: `run(machine)` is executed as root inside the virtual board and returns what was seen."""
