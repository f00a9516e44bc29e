"""A real server, a real model and a real load in one terminal, to watch the guard at work."""
