"""The gateway: an HTTP server through which an unchanged agent is trained, if the agent uses a vendor's API.

A wire (the API format of a vendor, such as Anthropic Messages or OpenAI Responses) reads each request into a common
form. A session keeps the model's replies as a tree, each with its sampled tokens.
"""
