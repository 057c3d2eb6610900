"""One episode: a Conversation and an Env in turns, its options, its end, and how it is parked and resumed."""
