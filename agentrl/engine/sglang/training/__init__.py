"""SGLang with the weights in training: a server started and ended by agentrl, or a running server at a URL."""
