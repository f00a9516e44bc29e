"""Where memory figures come from: read-only, each source takes its root directory."""
