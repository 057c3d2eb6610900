"""`agentrl slime rehearse`: slime's own training program, whole, on a laptop."""
