"""The network of a sandbox with `network: [host, ...]`: a filtering proxy in this process, and the connection to the
proxy.

`hosts` decides which hosts are allowed. `requests` parses the sandbox's requests. `proxy` serves. `listening` opens the
only connection: this process owns a socket that listens at the sandbox's loopback interface.
"""
