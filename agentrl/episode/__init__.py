"""The course of an episode: a Conversation with the model and an Env take turns; options, scoring, parking and
resuming."""
