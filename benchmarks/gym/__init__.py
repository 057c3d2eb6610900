"""Ten small tasks on which the defaults of the embedded trainer are decided. See `benchmarks/gym/__main__.py`."""
