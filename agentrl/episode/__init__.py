"""The life of an episode: a Conversation and an Env in turns, the options, the end, parking and resuming."""
