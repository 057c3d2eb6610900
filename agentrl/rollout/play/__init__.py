"""Playing groups of episodes in this process or in workers, with opponents, branches, retries and filters."""
