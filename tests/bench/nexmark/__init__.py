"""The Nexmark benchmark: its events, its queries, and what they must give."""
