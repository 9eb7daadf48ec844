"""Reports of what the engine would do, does and did: `plan`, `plans`, `profile`, `occupancy`."""
