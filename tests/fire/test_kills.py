"""A run that is killed at any point ends like an unbroken one and pays for no reply twice."""
