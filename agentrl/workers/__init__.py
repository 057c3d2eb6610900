"""Workers: processes that play episodes. The same interface has two transports: pipes on a node, and Ray actors.

The driver is the program that owns the run. The driver has the tasks, samples, rewards and groups. A worker has the
Envs, a renderer and a client of the engine, and plays episodes. `WorkerPool` sends requests to workers, and replaces
workers that have ended. Only the worker's `Job` knows the content of a request. `agentrl.rollout.play.remote` and
`agentrl.slime.remote` each have a Job.
"""

from agentrl.workers.base import Job, JobOrder, Transport, WorkerLink, WorkerLostError
from agentrl.workers.pool import WorkerAnswer, WorkerPool

__all__ = ["Job", "JobOrder", "Transport", "WorkerAnswer", "WorkerLink", "WorkerLostError", "WorkerPool"]
