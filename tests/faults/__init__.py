"""A campaign of faults against real Spark jobs: killed processes, failing writes, returning drivers."""
