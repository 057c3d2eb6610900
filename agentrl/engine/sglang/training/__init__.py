"""SGLang with the weights in training: a server that agentrl starts and ends, or one at a URL."""
