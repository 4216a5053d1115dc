"""Runs with several subtasks: processes that own key groups, and channels with barriers between them."""
