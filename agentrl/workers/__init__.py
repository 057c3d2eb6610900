"""Workers: episodes in processes of their own. One interface, and two transports: pipes on one node, and Ray actors.

The program that owns the run (the driver) keeps tasks, samples, rewards and groups. A worker keeps Envs, renderer and
engine client, and plays episodes. `WorkerPool` sends requests to workers and replaces those that end. What a request
is, only the worker's `Job` knows: `agentrl.rollout.remote` and `agentrl.slime.remote` each have one.
"""

from agentrl.workers.base import Job, JobOrder, Transport, WorkerLink, WorkerLostError
from agentrl.workers.pool import WorkerAnswer, WorkerPool

__all__ = ["Job", "JobOrder", "Transport", "WorkerAnswer", "WorkerLink", "WorkerLostError", "WorkerPool"]
