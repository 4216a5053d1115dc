"""The data source `keyedstate`: stored state as a DataFrame."""
