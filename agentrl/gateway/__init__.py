"""The gateway: an agent that speaks a vendor's API is trained as it is, token for token.

A wire (Anthropic Messages, OpenAI Responses, OpenAI Chat Completions) reads each request into one form. A session keeps
the replies as a tree, and each reply with the tokens that were sampled.
"""
