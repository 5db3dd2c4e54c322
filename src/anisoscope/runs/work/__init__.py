"""Passes over data: units of work, the loop, what observes it (`observers`), saved state, engines."""
