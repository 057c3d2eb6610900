"""The gateway: an agent that uses a vendor's API is trained unchanged, token for token.

A wire (Anthropic Messages, OpenAI Responses, OpenAI Chat Completions) reads each request into a common form. A session
keeps the replies as a tree, each with its sampled tokens.
"""
