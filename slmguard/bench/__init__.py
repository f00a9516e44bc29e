"""Measuring an engine, and reading what engines print."""
