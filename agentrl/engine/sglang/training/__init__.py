"""SGLang with the weights in training: a server that agentrl starts and ends, or a running server at a URL."""
