"""Passes over data: units of work, the loop, observers, saved state, engines."""
