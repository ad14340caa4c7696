"""A process tree owned by a cgroup: launched, watched, stopped."""
