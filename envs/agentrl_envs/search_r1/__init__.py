"""Search-R1: a model that asks a search engine while it thinks."""
