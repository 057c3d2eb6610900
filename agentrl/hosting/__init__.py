"""Support for any host that calls agentrl once a sample: its configuration, and the resources of an event loop."""
