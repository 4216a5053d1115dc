"""Reading, verifying, comparing and exporting snapshots without a job."""
