"""One agent's session: requests become a tree of replies, and the tree becomes segments."""
