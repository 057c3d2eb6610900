"""What agentrl needs under any host that calls it once a sample: its configuration, and what episodes share."""
