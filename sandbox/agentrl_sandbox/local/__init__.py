"""Plain subprocesses on this machine: no isolation, for trusted code only."""
