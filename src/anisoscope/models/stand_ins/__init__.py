"""Every architecture of the catalogue, small, with random weights and a processor that works."""
