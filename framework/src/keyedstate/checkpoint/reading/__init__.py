"""Reading, checking, comparing and exporting stored state without a job."""
