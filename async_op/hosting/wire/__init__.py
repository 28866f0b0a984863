"""Messages between processes: as bytes, over sockets, with proof of who is at the other end."""
