"""The pure heart: samples in, decisions out. No os, time, socket or logging here; a test enforces it."""
