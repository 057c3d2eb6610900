"""Learn the behaviour of a template: render messages with known words, and search for these words in the text."""
