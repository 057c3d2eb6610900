"""A module for each suite plays its environments through the suite's API and through the adapter. `benchmarks.adapters`
runs them."""
