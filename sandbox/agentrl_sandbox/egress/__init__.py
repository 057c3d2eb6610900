"""What a sandbox with `network: [host, ...]` reaches: a filtering proxy in this process, and the way to it.

`hosts` decides, `requests` and `client_hello` read what the sandbox sends, `proxy` serves, `listening` makes the only
way out: a socket that listens at the sandbox's own loopback and belongs to this process.
"""
