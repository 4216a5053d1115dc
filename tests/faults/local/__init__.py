"""A campaign over runs without Spark: channels, delays, kills, guarantees and rescaling, against a model."""
