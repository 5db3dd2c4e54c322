"""The sums: update, merge, state, from_state."""
