"""One module a suite: its environments, played by its own API and by its adapter. `benchmarks.adapters` runs them."""
