"""Models that people deploy, one file each, with the names of parameters that their published weights have."""
