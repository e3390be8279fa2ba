"""Parallelism over devices and processes: the mesh, the sharding rules, and the startup of processes."""
