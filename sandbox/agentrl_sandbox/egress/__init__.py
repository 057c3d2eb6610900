"""The network of a sandbox with `network: [host, ...]`: a filtering proxy in this process, and the way there.

`hosts` decides, `requests` reads the sandbox's requests, `proxy` serves, `listening` makes the only way
out: a socket listening at the sandbox's own loopback, owned by this process.
"""
