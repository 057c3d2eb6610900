"""Sandboxes of services with E2B's protocol: E2B itself, and your servers, such as AgentENV."""
