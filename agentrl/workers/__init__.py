"""Workers: episodes in separate processes. One interface, and two transports: pipes on one node, and Ray actors.

The program that owns the run (the driver) holds tasks, samples, rewards and groups. A worker holds Envs, renderer and
engine client, and plays episodes. `WorkerPool` sends requests to workers and replaces ended workers. Only the worker's
`Job` knows the meaning of a request: `agentrl.rollout.play.remote` and `agentrl.slime.remote` each have a Job.
"""

from agentrl.workers.base import Job, JobOrder, Transport, WorkerLink, WorkerLostError
from agentrl.workers.pool import WorkerAnswer, WorkerPool

__all__ = ["Job", "JobOrder", "Transport", "WorkerAnswer", "WorkerLink", "WorkerLostError", "WorkerPool"]
