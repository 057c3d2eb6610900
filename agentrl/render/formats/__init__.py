"""How templates spell calls: one file a spelling."""
