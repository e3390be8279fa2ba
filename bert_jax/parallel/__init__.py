"""Many devices and many processes: the mesh, the sharding rules, and how processes start and meet."""
