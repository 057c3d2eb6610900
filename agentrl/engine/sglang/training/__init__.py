"""SGLang beside a trainer: a server that agentrl starts and ends, or one at a URL, with the weights in training."""
