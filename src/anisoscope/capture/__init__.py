"""Where vectors are looked at, and how they are taken while a model runs."""
