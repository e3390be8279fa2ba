"""Runs independent tasks and stores each result, so that a build can be resumed: locally, or with Beam."""

from data_pipelines.pools.base import Function, Pool, Result
from data_pipelines.pools.beam import BeamPool
from data_pipelines.pools.local import LocalPool, count

__all__ = ["BeamPool", "Function", "LocalPool", "Pool", "Result", "count"]
