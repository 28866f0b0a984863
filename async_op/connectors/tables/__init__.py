"""Tables as sinks: each remembers, in the transaction that writes an epoch, that it has the epoch."""
