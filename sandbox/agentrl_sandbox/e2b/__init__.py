"""Sandboxes of services with E2B's protocol: E2B itself, and servers of your own such as AgentENV."""
