"""The front door: an HTTP proxy that clamps, trims, refuses and holds requests."""
