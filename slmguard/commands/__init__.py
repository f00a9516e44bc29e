"""One file per command of the command line; see `slmguard.cli` for what a command module offers."""
