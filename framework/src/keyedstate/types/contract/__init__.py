"""The contract of serializers, and what those of several kinds share; it knows no type."""
