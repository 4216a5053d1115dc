"""The channels between tasks: elements, the input gates that align or track barriers, and watermarks.

Everything here is single-threaded and has no processes, files or clocks: time is passed in.
"""
