"""An agent's session: the model's replies to the agent's requests form a tree, from which the trajectory's segments are
made."""
