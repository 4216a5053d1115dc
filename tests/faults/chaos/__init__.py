"""A campaign of chaos: kills, stops and second drivers in real time, not at named steps."""
