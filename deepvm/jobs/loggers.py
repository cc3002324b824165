"""The loggers of agents, and of what runs next to a controller."""

import logging

agent_log = logging.getLogger("deepvm.agent")
jobs_log = logging.getLogger("deepvm.jobs")
