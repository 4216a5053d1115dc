"""Tables that keep the objects of often used rows in memory."""
